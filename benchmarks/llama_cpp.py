"""llama.cpp beside `omnitide bench`: a token, and updates, of one shape after the same histories.

    python benchmarks/llama_cpp.py --llama-bench PATH [--shape NAME] [--history 2048 8192]
        [--tokens 512 2304] [--q-bits 0 4] [--peer mlx-lm] [--gguf FILE]

PATH is the llama-bench of a build of your own, for the GPU that is to be measured. Its weights are
random (`random_gguf.py`): most matrices in Q4_K, some in Q6_K, K and V in half precision, flash
attention on, an update in one pass. Ours run with full context, in a process of their own, so that
only one program holds the GPU's memory; columns with bits have their matrices in so many bits.
Figures are milliseconds, medians; llama-bench gives the mean of `--in-a-row` tokens of a reply.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from omnitide.cli.interrupts import AfterImports

Times = dict[tuple[int, int], float]
"""Milliseconds by new tokens (a token of a reply: 1) and history."""

LLAMA = "llama.cpp"
NS = 1e-6
GGUF = b"GGUF"
"""What a file of weights begins with."""


class Failed(Exception):
    """A program that was run says why it can't go on."""


@dataclass(frozen=True)
class Found:
    """What was measured.

    Attributes:
        columns: Times by who.
        notes: For people.
    """

    columns: dict[str, Times]
    notes: list[str]


def llama_command(options: argparse.Namespace, model: Path) -> list[str]:
    """One call for all cases; each update is one batch, cut nowhere."""
    largest = str(max(options.tokens))
    command = [str(options.llama_bench), "--model", str(model), "--output", "json"]
    command += ["--n-prompt", _commas(options.tokens), "--n-gen", str(options.in_a_row)]
    command += ["--n-depth", _commas(options.history), "--repetitions", str(options.llama_repeat)]
    command += ["--batch-size", largest, "--ubatch-size", largest, "--flash-attn", "1"]
    if options.threads is not None:
        command += ["--threads", str(options.threads)]
    return command


def our_command(options: argparse.Namespace, name: str, bits: int) -> list[str]:
    """`omnitide bench decode` or `update`, with full context."""
    command = [sys.executable, "-m", "omnitide", "bench", name, "--json", "--policy", "full"]
    command += ["--shape", options.shape, "--backend", options.backend]
    command += ["--repeat", str(options.repeat), "--history", *map(str, options.history)]
    if name == "update":
        command += ["--tokens", *map(str, options.tokens)]
    if bits:
        command += ["--q-bits", str(bits), "--q-group-size", str(options.q_group_size)]
    if options.peer is not None:
        command += ["--peer", options.peer]
    return command


def read_llama(text: str) -> tuple[Times, str]:
    """Times of llama-bench's JSON, and what build ran where.

    Raises:
        Failed: It is no such JSON.
    """
    try:
        tests = json.loads(text)
        found: Times = {}
        for test in tests:
            generated = test["n_gen"]
            case = (1 if generated else test["n_prompt"], test["n_depth"])
            found[case] = median(test["samples_ns"]) * NS / max(generated, 1)
        first = tests[0]
        where = first["gpu_info"] or first["cpu_info"]
        build = f"{first['build_commit']} ({first['build_number']}), {first['backends']}, {where}"
        return found, f"{LLAMA} {build}, {first['model_size'] / 1e6:,.1f} MB of weights"
    except (ValueError, LookupError, TypeError) as error:
        raise Failed(
            f"llama-bench printed no JSON that is known here ({error!r}); give the llama-bench of "
            "a build of llama.cpp"
        ) from error


def add_ours(found: Found, report: dict[str, Any], bits: int) -> None:
    """The rows of one of our reports, each who a column."""
    for row in report["rows"]:
        who = f"{row['who']}, {bits} bits" if bits else row["who"]
        found.columns.setdefault(who, {})[row.get("tokens", 1), row["history"]] = row["ms"]
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    ran = f"{machine['backend']} on {machine['device']}, {machine['dtype']}; {versions}"
    for note in (ran, *report["notes"]):
        if note not in found.notes:
            found.notes.append(note)


def run(command: Sequence[str]) -> str:
    """What a program prints.

    Raises:
        Failed: It can't be run, or fails.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Failed(f"{command[0]} can't be run: {error.strerror}") from error
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise Failed(f"{' '.join(command)}\nended with {done.returncode}:\n{last}")
    return done.stdout


def measure(options: argparse.Namespace, folder: Path) -> Found:
    """Ours first, then llama.cpp.

    Raises:
        Failed: A program does.
        OSError: The file of weights can't be written.
    """
    from random_gguf import write

    from omnitide.bench.shapes import SHAPES

    found = Found({}, [])
    for bits in options.q_bits:
        for name in ("decode", "update"):
            print(f"omnitide bench {name}", file=sys.stderr)
            add_ours(found, json.loads(run(our_command(options, name, bits))), bits)
    model = options.gguf or folder / "random.gguf"
    if not model.exists():
        print(f"writing {model}", file=sys.stderr)
        write(model, SHAPES[options.shape].text, options.shape)
    print("llama-bench", file=sys.stderr)
    times, build = read_llama(run(llama_command(options, model)))
    found.columns[LLAMA] = times
    found.notes.append(build)
    return found


def lines(found: Found, shape: str) -> list[str]:
    """A table with a column for each who, and the notes."""
    cases = sorted({case for times in found.columns.values() for case in times})
    rows = [[f"{shape}, ms", *found.columns]]
    for tokens, history in cases:
        what = "a token" if tokens == 1 else f"{tokens:,} tokens"
        values = (times.get((tokens, history)) for times in found.columns.values())
        cells = ("-" if value is None else f"{value:,.2f}" for value in values)
        rows.append([f"{what} after {history:,}", *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    return table + [f"note: {note}" for note in found.notes]


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    # Here, so that Ctrl-C during this import is met in `main`.
    from omnitide.bench.shapes import SHAPES

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--llama-bench", type=Path, required=True, help="llama.cpp's own program")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="qwen2.5-omni-7b")
    parser.add_argument("--history", type=_count, nargs="+", default=[2048, 8192], help="cells")
    parser.add_argument(
        "--tokens", type=_several, nargs="+", default=[512, 2304], help="of updates"
    )
    parser.add_argument("--gguf", type=Path, help="weights: taken if there, else written and kept")
    parser.add_argument("--in-a-row", type=_count, default=32, help="tokens of llama.cpp's reply")
    parser.add_argument("--llama-repeat", type=_count, default=5, help="its repetitions")
    parser.add_argument("--threads", type=_count, help="of llama.cpp (default: its own)")
    parser.add_argument("--backend", default="auto", help="of omnitide bench")
    parser.add_argument("--repeat", type=_count, default=20, help="timed runs of omnitide bench")
    parser.add_argument("--q-bits", type=int, nargs="+", choices=(0, 4, 8), default=[4])
    parser.add_argument("--q-group-size", type=int, choices=(32, 64, 128), default=64)
    parser.add_argument("--peer", help="of omnitide bench, measured too: mlx-lm")
    options = parser.parse_args(arguments)
    if not options.llama_bench.is_file():
        parser.error(f"--llama-bench: there is no file {options.llama_bench}")
    if not os.access(options.llama_bench, os.X_OK):
        parser.error(f"--llama-bench: {options.llama_bench} must be a program, and can't be run")
    if options.gguf is not None:
        _check_weights(options.gguf, parser)
    return options


def main() -> None:
    """Measure and print."""
    try:
        with AfterImports():
            options = read_options()
            with tempfile.TemporaryDirectory() as folder:
                found = measure(options, Path(folder))
    except KeyboardInterrupt:
        print("llama_cpp.py: error: interrupted", file=sys.stderr)
        sys.exit(130)
    except (Failed, OSError) as error:
        sys.exit(f"llama_cpp.py: error: {error}")
    print("\n".join(lines(found, options.shape)))


def _check_weights(file: Path, parser: argparse.ArgumentParser) -> None:
    """Refuse, before anything is measured, what can be neither read as weights nor written."""
    try:
        if file.exists():
            with file.open("rb") as opened:
                found = opened.read(len(GGUF))
            if found != GGUF:
                parser.error(
                    f"--gguf: {file} is there and is no GGUF file; give one, or a new name"
                )
        elif not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
            parser.error(f"--gguf: {file} can't be written; give a name in a folder that can be")
    except OSError as error:
        parser.error(f"--gguf: {file} can't be read: {error.strerror}")


def _commas(counts: Sequence[int]) -> str:
    return ",".join(map(str, counts))


def _count(given: str) -> int:
    return _at_least(given, 1)


def _several(given: str) -> int:
    """Tokens of an update; one token is measured as a reply's."""
    return _at_least(given, 2)


def _at_least(given: str, least: int) -> int:
    if not given.isdecimal() or int(given) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number from {least}, got {given!r}")
    return int(given)


if __name__ == "__main__":
    main()
