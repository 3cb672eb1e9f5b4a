"""Names of kernel instances, and the text that CuPy and the compile check make them from.

Importing this module imports no CUDA library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

C_TYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float"}
"""Spelling of a dtype in a name expression."""

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_120")
"""Chips that every instance without an `arch` of its own is compiled for."""

_INCLUDE = re.compile(r'^#include "([\w.]+)"\n', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance of a kernel template.

    Attributes:
        file: A file of `kernels/` without its ending, e.g. "decode_attention".
        name: Its name expression, e.g. "decode_attention<__half, 128>".
        arch: The one architecture it is for, e.g. "sm_90a"; None: all of `ARCHITECTURES`.
    """

    file: str
    name: str
    arch: str | None = None

    @property
    def source(self) -> str:
        """The whole text to compile; our own headers are pasted in where they are included.

        So that caches keyed by the text see a change in a header, and no folder of ours has to be
        given to the compiler.
        """
        return _with_headers(f"{self.file}.cu", set())


def _with_headers(name: str, seen: set[str]) -> str:
    text = (files("omnitide.backends.cuda") / "kernels" / name).read_text(encoding="utf-8")

    def paste(match: re.Match[str]) -> str:
        header = match.group(1)
        if header in seen:
            return ""
        seen.add(header)
        return _with_headers(header, seen)

    return _INCLUDE.sub(paste, text)
