"""Lack of GPU memory, said so that a person can do something about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from omnitide.backends.cuda.arrays import cp
from omnitide.errors import BackendError

WHAT_TO_DO = (
    "lower --high-watermark, --max-kv-size or --max-pixels, or close what else uses the GPU"
)


@contextmanager
def enough_memory(op: str, needed: int | None = None) -> Iterator[None]:
    """Turn CuPy's error into ours. What the failed call had allocated is given back.

    Args:
        op: For the message.
        needed: Bytes that the whole of it needs, if known.

    Raises:
        BackendError: Memory ran out.
    """
    try:
        yield
    except cp.cuda.memory.OutOfMemoryError as error:
        cp.get_default_memory_pool().free_all_blocks()
        free, total = cp.cuda.runtime.memGetInfo()
        asked = str(error) if needed is None else f"{needed / 2**30:.1f} GiB are needed"
        raise BackendError(
            f"[{op}] not enough GPU memory: {asked}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB "
            f"are free; {WHAT_TO_DO}"
        ) from None
