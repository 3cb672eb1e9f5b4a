"""Writing one safetensors file, block by block of each tensor."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.convert.affine import Packed, quantize
from omnitide.convert.plan import Item, Shard
from omnitide.convert.recipe import KEPT
from omnitide.convert.source import DTYPES, HEADER_SIZE_BYTES
from omnitide.dequantize import dequantize
from omnitide.errors import CheckpointError
from omnitide.quantized import QuantizedWeight
from omnitide.whole_file import WholeFile

BYTES_PER_VALUE = 40
"""Memory that a value takes while it is quantised, at most: as stored, in the dtype that is
written, and some six times in float32."""

MOST_THREADS = 8
VALUES_PER_THREAD = 1 << 19
"""Fewer than these are not worth another thread, and more don't stay in caches."""


@dataclass(frozen=True, slots=True)
class ModuleError:
    """What quantising did to a matrix.

    Attributes:
        module: Canonical name.
        bits, group_size: How it is quantised.
        relative_error: Norm of the difference over norm of the matrix (Frobenius); 0 of zeros.
        largest_error: Greatest difference of a value.
    """

    module: str
    bits: int
    group_size: int
    relative_error: float
    largest_error: float


class ShardWriter:
    """Writes shards within a memory limit. Use it as a context manager."""

    def __init__(self, memory_limit: int, advance: Callable[[int], None]) -> None:
        """memory_limit: bytes to work in. advance: is told bytes of the source that are done."""
        self._values_at_once = max(memory_limit // BYTES_PER_VALUE, 1)
        self._advance = advance
        self._pool = ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def write(self, shard: Shard, file: WholeFile) -> list[ModuleError]:
        """Write a shard's bytes. The errors of what was quantised.

        Raises:
            CheckpointError: A value is not finite, or a file can't be read or written.
        """
        file.write(_header(shard))
        errors = []
        for item in shard.items:
            if item.format is not None:
                errors.append(self._write_quantized(item, file))
            elif not (item.is_read and item.dtype in DTYPES):
                for piece in item.source.pieces(1, self._values_at_once):
                    file.write(piece)
                    self._advance(len(piece))
            else:
                self._write_converted(item, file)
        return errors

    def _write_converted(self, item: Item, file: WholeFile) -> None:
        size = DTYPES[item.info.dtype].itemsize
        for block in item.source.blocks(1, self._values_at_once):
            file.write(_converted(block, item).tobytes())
            self._advance(block.size * size)

    def _write_quantized(self, item: Item, file: WholeFile) -> ModuleError:
        if item.format is None:
            raise ValueError(f"[write] {item.info.name} is not to be quantised")
        scales: list[bytes] = []
        biases: list[bytes] = []
        lost = held = 0.0
        largest = 0.0
        size = DTYPES[item.info.dtype].itemsize
        for block in item.source.blocks(item.info.shape[1], self._values_at_once):
            work = partial(_quantize_block, item)
            for packed, square, whole, most in self._pool.map(work, self._parts(block)):
                file.write(packed[0].astype("<u4", copy=False).tobytes())
                scales.append(packed[1].tobytes())
                biases.append(packed[2].tobytes())
                lost, held, largest = lost + square, held + whole, max(largest, most)
            self._advance(block.size * size)
        for part in (*scales, *biases):
            file.write(part)
        relative = math.sqrt(lost / held) if held else 0.0
        format = item.format
        return ModuleError(item.module, format.bits, format.group_size, relative, largest)

    def _parts(self, block: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Rows of a block for one thread at a time."""
        step = max(VALUES_PER_THREAD // block.shape[1], 1)
        return (block[first : first + step] for first in range(0, len(block), step))


def _quantize_block(item: Item, block: NDArray[Any]) -> tuple[Packed, float, float, float]:
    """Rows quantised; square of the error, square of the values, greatest error.

    Raises:
        CheckpointError: A value is not finite, or a group's are too far apart to be quantised.
    """
    if item.format is None:
        raise ValueError(f"[write] {item.info.name} is not to be quantised")
    bits, group_size = item.format.bits, item.format.group_size
    values = _converted(block, item)
    with np.errstate(over="ignore", invalid="ignore"):  # looked at below
        packed = quantize(values, bits, group_size)
    if not all(np.isfinite(part.astype(np.float32)).all() for part in packed[1:]):
        raise CheckpointError(
            f"[convert] {item.info.name} in {item.info.file.name} holds values that are too far "
            f"apart for a scale of {item.dtype}; leave it as it is with --module "
            f"'{item.module}={KEPT}'"
        )
    single = np.dtype(np.float32)
    difference = dequantize(QuantizedWeight(*packed, bits, group_size, "affine"), single)
    wide = values.astype(single)
    difference -= wide
    largest = float(np.abs(difference).max())
    return packed, _sum_of_squares(difference), _sum_of_squares(wide), largest


def _sum_of_squares(values: NDArray[Any]) -> float:
    """In float64, which holds the square of any float32."""
    return float(np.square(values, dtype=np.float64).sum())


def _converted(block: NDArray[Any], item: Item) -> NDArray[Any]:
    """Values in the dtype that is written, all of them finite.

    Raises:
        CheckpointError: Some are not, as stored or in that dtype.
    """
    with np.errstate(over="ignore"):
        values = block.astype(DTYPES[item.dtype])
    # NumPy has no isfinite of bfloat16 in old versions of ml_dtypes; float32 holds both.
    if not np.isfinite(values.astype(np.float32)).all():
        sound = bool(np.isfinite(block.astype(np.float64)).all())
        raise CheckpointError(
            f"[convert] {item.info.name} in {item.info.file.name} holds values "
            + (
                f"too large for {item.dtype}; give another --dtype"
                if sound
                else "that are no finite numbers; download it again"
            )
        )
    return values


def _header(shard: Shard) -> bytes:
    """Size and names, dtypes, shapes and places of the tensors, padded to whole words."""
    entries: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    at = 0
    for output in (output for item in shard.items for output in item.outputs()):
        entries[output.name] = {
            "dtype": output.dtype,
            "shape": list(output.shape),
            "data_offsets": [at, at + output.nbytes],
        }
        at += output.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_SIZE_BYTES)
    return len(text).to_bytes(HEADER_SIZE_BYTES, "little") + text
