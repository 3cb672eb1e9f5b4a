"""Builds translated kernels with clang, once for each content.

Two builds of each: one that is only checked, in which address spaces convert to nothing, and one
that runs. The runtime is linked to each kernel.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from platformdirs import user_cache_path

from .availability import clang_version, find_clang
from .errors import CompileError
from .translate import Translated

HERE = Path(__file__).parent
COMMON = (
    "-g1",  # lines of the kernel in messages
    "-O1",
    "-fPIC",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-fno-exceptions",
    "-fvisibility=hidden",
)
KERNEL = (
    "-xc++",
    "-std=c++14",  # as Metal 3
    f"-isystem{HERE}",
    "-Werror=c++17-extensions",
    "-Wno-unknown-attributes",
    "-Wno-ignored-attributes",
    # Each operation of half and bfloat rounds, as on the GPU.
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-Xclang",
    "-fbfloat16-excess-precision=none",
)
TRACED = (
    "-fsanitize=thread",
    "-mllvm",
    "-tsan-instrument-func-entry-exit=0",
    "-mllvm",
    "-tsan-instrument-read-before-write=1",
)
COPIED = "candidate function (the implicit copy"
ADDRESS = ("-fsanitize=address", "-shared-libasan")


def build(kernel: Translated, address_sanitizer: bool = False) -> Path:
    """The shared library of a kernel.

    Args:
        kernel: What to build.
        address_sanitizer: Build for clang's AddressSanitizer instead of for the runtime's own
            bookkeeping. Only a process that has that sanitizer's library preloaded can load it.

    Raises:
        CompileError: Clang refuses the kernel.
    """
    mode = "address" if address_sanitizer else "traced"
    library = _folder() / f"{kernel.name[:80]}-{_key(kernel.text, mode)}.so"
    if library.exists():
        return library
    runtime = _runtime()
    flags = ADDRESS if address_sanitizer else TRACED
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        made = Path(folder) / "kernel.o"
        check = (*KERNEL, "-DMETAL_CPU_ADDRESS_SPACES", "-ferror-limit=0", "-fsyntax-only")
        _clang(kernel.text, (*check, "-"), (*COMMON, *KERNEL, *flags, "-c", "-", f"-o{made}"))
        linked = made.with_suffix(".so")
        link_flags = ADDRESS if address_sanitizer else ()
        _clang("", ("-shared", *link_flags, str(made), str(runtime), *_builtins(), f"-o{linked}"))
        linked.replace(library)
    return library


def sanitizer_library() -> str:
    """The AddressSanitizer's library, to preload."""
    machine = os.uname().machine
    clang = str(find_clang())
    command = [clang, f"-print-file-name=libclang_rt.asan-{machine}.so"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def source_line(library: Path, offset: int) -> str:
    """ "file:line" of an address in a library, empty if it can't be told."""
    clang = find_clang()
    assert clang is not None
    resolved = clang.resolve().parent / "llvm-symbolizer"
    if not offset or not resolved.exists():
        return ""
    command = [str(resolved), f"--obj={library}", hex(offset - 1)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    places = (line.rpartition("/")[2] for line in said.splitlines() if ".metal:" in line)
    return next(places, "").rpartition(":")[0]


@cache
def _runtime() -> Path:
    """The runtime's object file, for both builds: no sanitizer follows its fibers' jumps."""
    made = _folder() / f"runtime-{_key('', 'runtime')}.o"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=_folder()) as folder:
            object_file = Path(folder) / "runtime.o"
            source = str(HERE / "runtime.cpp")
            _clang("", (*COMMON, "-std=c++17", "-O2", "-c", source, f"-o{object_file}"))
            object_file.replace(made)
    return made


@cache
def _folder() -> Path:
    folder = user_cache_path("omnitide") / "metal_cpu"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _base() -> str:
    """What all builds depend on."""
    clang = find_clang()
    assert clang is not None
    sources = [HERE / "compiler.py", *sorted(HERE.glob("*.h")), HERE / "runtime.cpp"]
    parts = [clang_version(clang)[1], *(path.read_text() for path in sources)]
    return "\0".join(parts)


def _key(text: str, mode: str) -> str:
    return hashlib.sha256("\0".join((mode, _base(), text)).encode()).hexdigest()[:20]


@cache
def _builtins() -> tuple[str, ...]:
    """Clang's own library of conversions of half and bfloat, where it is installed."""
    command = [str(find_clang()), "--rtlib=compiler-rt", "-print-libgcc-file-name"]
    path = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return (path,) if Path(path).is_file() else ()


def _clang(text: str, *runs: tuple[str, ...]) -> None:
    """Run clang several times at once on the same text."""
    started = [
        subprocess.Popen(
            [str(find_clang()), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for arguments in runs
    ]
    said = [process.communicate(text)[0] for process in started]
    for process, output in zip(started, said, strict=True):
        if process.returncode and (errors := _errors(output)):
            raise CompileError(f"[metal_cpu] clang refuses the kernel:\n{errors}")


def _errors(output: str) -> str:
    """What clang said, without what Metal allows: structures copied between address spaces."""
    parts = re.split(r"^(?=\S.*: (?:error|warning): )", output, flags=re.M)
    kept = [part for part in parts if not (": error: " in part and COPIED in part)]
    return "".join(kept) if any("error: " in part for part in kept) else ""
