"""Compile every kernel instance for every chip, without a GPU: nothing may spill.

    python -m omnitide.backends.cuda.compile_check [--markdown FILE]

prints what each instance takes of a chip. Exits with 1, and says why, where a text does not compile
or registers spill. All instances of a file are compiled in one program for each chip; the programs
run side by side, one for each core. The user's cache folder remembers what the compiler says.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from omnitide.backends.cuda.catalog import all_instances
from omnitide.backends.cuda.compiled_logs import compile_or_recall
from omnitide.backends.cuda.instances import ARCHITECTURES, Instance
from omnitide.backends.cuda.nvrtc import CompileError, Nvrtc
from omnitide.backends.cuda.ptxas_log import Usage, read_usage, warnings
from omnitide.errors import BackendError


@dataclass(frozen=True, slots=True)
class Program:
    """The instances of one kernel file, to be compiled together for one chip."""

    file: str
    arch: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a program.

    Attributes:
        program: It.
        usages: By instance name; empty if it does not compile.
        problems: Why it must not be used as it is: compiler errors, spills, warnings.
    """

    program: Program
    usages: dict[str, Usage]
    problems: tuple[str, ...]


def programs(instances: Iterable[Instance]) -> tuple[Program, ...]:
    """Instances, sorted into programs: each for its own chip, or for all `ARCHITECTURES`."""
    names: dict[tuple[str, str], list[str]] = {}
    for instance in instances:
        for arch in ARCHITECTURES if instance.arch is None else (instance.arch,):
            names.setdefault((instance.file, arch), []).append(instance.name)
    return tuple(Program(file, arch, tuple(found)) for (file, arch), found in names.items())


def check(program: Program) -> Report:
    """Compile a program and read what its kernels take.

    Raises:
        BackendError: NVRTC is not installed.
    """
    return check_text(program, Instance(program.file, program.names[0]).source)


def check_text(program: Program, source: str) -> Report:
    """As `check`, of a given text."""
    try:
        compiled = compile_or_recall(_nvrtc(), source, program.arch, program.names)
    except CompileError as error:
        return Report(program, {}, (f"does not compile:\n{error}",))
    usages = read_usage(compiled.log)
    names = {symbol: name for name, symbol in compiled.symbols.items()}
    spilling = tuple(
        f"{names.get(symbol, symbol)} spills {usage.spilled} bytes"
        for symbol, usage in usages.items()
        if usage.spilled
    )
    told = {name: usages[symbol] for name, symbol in compiled.symbols.items()}
    return Report(program, told, (*spilling, *warnings(compiled.log)))


def table(reports: Sequence[Report]) -> str:
    """A Markdown table: one row an instance, one column a chip."""
    chips = sorted({report.program.arch for report in reports}, key=_chip_number)
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for report in reports:
        for name, usage in report.usages.items():
            text = f"{usage.registers}, {usage.shared:,}, {usage.stack}"
            cells.setdefault((report.program.file, name), {})[report.program.arch] = text
    lines = [
        f"Registers of a thread, static shared memory of a block and stack of a thread in bytes; "
        f"NVRTC {_nvrtc().version}.",
        "",
        f"| file | instance | {' | '.join(chips)} |",
        f"|---|---|{'---|' * len(chips)}",
    ]
    for (file, name), found in sorted(cells.items()):
        lines.append(f"| {file} | `{name}` | {' | '.join(found.get(c, '') for c in chips)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="compile_check", description=__doc__.split("\n")[0])
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    options = parser.parse_args(arguments)
    # The largest first, so that no core is left alone with one at the end.
    todo = sorted(programs(all_instances()), key=lambda p: len(p.names), reverse=True)
    try:
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            reports = list(pool.map(check, todo))
        text = table(reports)
    except BackendError as error:
        print(error, file=sys.stderr)
        return 2
    print(text, end="")
    if options.markdown is not None:
        options.markdown.write_text(text, encoding="utf-8")
    problems = [(r.program, problem) for r in reports for problem in r.problems]
    for program, problem in problems:
        print(f"{program.file}, {program.arch}: {problem}", file=sys.stderr)
    count = sum(len(report.usages) for report in reports)
    print(f"programs: {len(reports)}, kernels: {count}, problems: {len(problems)}")
    return 1 if problems else 0


def _chip_number(arch: str) -> tuple[int, str]:
    digits = arch.removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits), arch


@cache
def _nvrtc() -> Nvrtc:
    return Nvrtc()


if __name__ == "__main__":
    sys.exit(main())
