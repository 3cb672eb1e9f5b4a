"""NVIDIA's run-time compiler from its wheel: it needs neither a GPU nor a driver nor CuPy.

Used by the compile check only. At run time CuPy calls its own copy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from omnitide.errors import BackendError

HOW_TO_INSTALL = "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl"

OPTIONS = ("-std=c++17", "-ftz=true", "-default-device", "--ptxas-options=-v")
"""As CuPy compiles, and with what the assembler says in the log."""


class CompileError(Exception):
    """A text does not compile; the message is the compiler's log."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler says of a text.

    Attributes:
        log: Its log, with what the assembler says of each kernel.
        symbols: The symbol of each name expression.
    """

    log: str
    symbols: dict[str, str]


class Nvrtc:
    """The compiler.

    Attributes:
        includes: Folders of CUDA's headers.

    Raises:
        BackendError: The wheels are not installed.
    """

    def __init__(self) -> None:
        builtins = _find("*/lib/libnvrtc-builtins.so*")
        libraries = [path for path in _find("*/lib/libnvrtc.so*") if path not in builtins]
        self.includes = sorted(
            {path.parent for path in _find("*/include/cuda_fp16.h")}
            | {path.parent.parent for path in _find("*/include/nv/target")}
            | {path.parent.parent for path in _find("*/include/cccl/nv/target")}
        )
        if not libraries or not self.includes:
            raise BackendError(f"[compile_check] NVRTC's wheels must be here: {HOW_TO_INSTALL}")
        for path in builtins:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self._path = libraries[-1]
        self._library = ctypes.CDLL(str(self._path))

    @property
    def version(self) -> str:
        """E.g. "13.5"."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    @property
    def build(self) -> str:
        """Names this very compiler: its version, options, and when its file was installed."""
        stat = self._path.stat()
        return f"{self.version} {' '.join(OPTIONS)} {stat.st_size} {stat.st_mtime_ns}"

    def compile(self, source: str, arch: str, names: Sequence[str]) -> Compiled:
        """Compile a text to machine code, which is thrown away: what the compiler says of it.

        Args:
            source: The text.
            arch: The chip, e.g. "sm_90".
            names: Name expressions of the kernels to make.

        Raises:
            CompileError: The text does not compile.
        """
        with self._compiled(source, arch, names) as program:
            symbols = {name: self._symbol(program, name) for name in names}
            return Compiled(self._log(program), symbols)

    def machine_code(self, source: str, arch: str, names: Sequence[str]) -> bytes:
        """The cubin, an ELF file, of what `compile` takes."""
        with self._compiled(source, arch, names) as program:
            size = ctypes.c_size_t()
            self._call("nvrtcGetCUBINSize", program, ctypes.byref(size))
            code = ctypes.create_string_buffer(size.value)
            self._call("nvrtcGetCUBIN", program, code)
            return code.raw

    @contextmanager
    def _compiled(self, source: str, arch: str, names: Sequence[str]) -> Iterator[ctypes.c_void_p]:
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            source.encode(),
            b"kernel.cu",
            0,
            None,
            None,
        )
        try:
            for name in names:
                self._call("nvrtcAddNameExpression", program, name.encode())
            includes = [f"-I{folder}" for folder in self.includes]
            options = [option.encode() for option in (*OPTIONS, f"-arch={arch}", *includes)]
            status = self._library.nvrtcCompileProgram(
                program, len(options), (ctypes.c_char_p * len(options))(*options)
            )
            if status != 0:
                raise CompileError(self._log(program))
            yield program
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._call("nvrtcGetProgramLogSize", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call("nvrtcGetProgramLog", program, text)
        return text.value.decode(errors="replace")

    def _symbol(self, program: ctypes.c_void_p, name: str) -> str:
        symbol = ctypes.c_char_p()
        self._call("nvrtcGetLoweredName", program, name.encode(), ctypes.byref(symbol))
        return (symbol.value or b"").decode()

    def _call(self, function: str, *args: object) -> None:
        status = getattr(self._library, function)(*args)
        if status != 0:
            raise BackendError(f"[compile_check] {function} must succeed, gave status {status}")


def _find(pattern: str) -> list[Path]:
    spec = find_spec("nvidia")
    folders: Iterable[str] = () if spec is None else spec.submodule_search_locations or ()
    return sorted(path for folder in folders for path in Path(folder).glob(pattern))
