"""Every kernel instance that the backend can launch, readable without CUDA.

A module with kernels of its own lists them in `instances() -> tuple[Instance, ...]` and is named
here; it imports CuPy through `arrays`, so that it can be imported without it.
"""

from __future__ import annotations

from omnitide.backends.cuda import (
    cache_writes,
    clock,
    decode,
    dequantize,
    eight_bit,
    elementwise,
    matvec,
    norms,
    plain_attention,
    prefill,
    prefill_hopper,
    quantized_matmul,
    quantized_matvec,
    sampling,
    segments,
)
from omnitide.backends.cuda.instances import Instance

HOST_MODULES = (
    cache_writes,
    clock,
    decode,
    dequantize,
    eight_bit,
    elementwise,
    matvec,
    norms,
    plain_attention,
    prefill,
    prefill_hopper,
    quantized_matmul,
    quantized_matvec,
    sampling,
    segments,
)


def all_instances() -> tuple[Instance, ...]:
    """The instances of all host modules, each once."""
    listed = (instance for module in HOST_MODULES for instance in module.instances())
    return tuple(dict.fromkeys(listed))
