"""What the assembler must not make of our copies."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator

import pytest

from omnitide.backends.cuda.instances import Instance
from omnitide.backends.cuda.nvrtc import Nvrtc

if sys.platform != "linux":
    pytest.skip("NVRTC's wheels are for Linux", allow_module_level=True)

# cp.async to a register plus a uniform register. The field of the latter is also that of a cache
# policy: with both, the offset is taken for a policy, and the copy traps.
COPY_TO_UNIFORM_OFFSET = 0xDAE
COPY = 0xFAE


def instructions(cubin: bytes) -> Iterator[int]:
    """The lower 12 bits of each instruction, 16 bytes, in the ELF file's sections of code."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count = struct.unpack_from("<HH", cubin, 58)
    for at in range(table, table + size * count, size):
        kind, flags, _, start, length = struct.unpack_from("<IQQQQ", cubin, at + 4)
        if kind == 1 and flags & 4:  # bits of a program, executable
            for place in range(start, start + length, 16):
                yield struct.unpack_from("<H", cubin, place)[0] & 0xFFF


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90"])
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("quantized_matvec", "quantized_matvec<__nv_bfloat16, 4, 64, 1>"),
        ("quantized_matvec", "quantized_matvec<__half, 8, 128, 8>"),
        ("matvec", "matvec<__nv_bfloat16, false, true, 1>"),
    ],
)
def test_no_copy_mixes_its_policy_with_an_offset(arch: str, file: str, name: str) -> None:
    source = Instance(file, name).source
    found = list(instructions(Nvrtc().machine_code(source, arch, [name])))
    assert COPY in found
    assert COPY_TO_UNIFORM_OFFSET not in found
