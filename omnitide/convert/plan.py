"""What a conversion writes: which tensor goes to which file, in which form. Nothing is read yet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from omnitide.convert.recipe import Format
from omnitide.convert.source import DTYPES, Source
from omnitide.models.headers import Shape, TensorInfo
from omnitide.quantized import WORD_BITS

SHARD_BYTES = 2 << 30
"""Bytes from which on a file is full. What is in a file is not done again after an interruption."""

VERSION = 1
"""Of what a plan means; a conversion is only taken up again under the same."""

DTYPE_SIZES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
}
"""Bytes of a value in safetensors' spelling; all others have one at most."""


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor of a file to be written."""

    name: str
    dtype: str
    shape: Shape
    nbytes: int


@dataclass(frozen=True, slots=True)
class Item:
    """A stored tensor and what becomes of it.

    Attributes:
        source: The tensor.
        module: Canonical name without ".weight", for reports.
        format: How it is quantised, or None.
        dtype: Of the floats that are written, in safetensors' spelling; of a tensor that is copied
            as it is, its own.
        is_read: Whether the model reads it, so that its values must be finite.
    """

    source: Source
    module: str
    format: Format | None
    dtype: str
    is_read: bool = True

    @property
    def info(self) -> TensorInfo:
        """The stored tensor."""
        return self.source.info

    @property
    def source_bytes(self) -> int:
        """Bytes to be read."""
        return self.source.stop - self.source.start

    def outputs(self) -> list[Written]:
        """The tensors that are written, in the order of their bytes."""
        info, format = self.info, self.format
        if format is None:
            size = (
                prod(info.shape) * DTYPES[self.dtype].itemsize
                if self.dtype in DTYPES
                else self.source_bytes
            )
            return [Written(info.name, self.dtype, info.shape, size)]
        rows, columns = info.shape
        words, groups = columns * format.bits // WORD_BITS, columns // format.group_size
        base, size = info.name.removesuffix(".weight"), DTYPES[self.dtype].itemsize
        fine = [
            Written(f"{base}.{part}", self.dtype, (rows, groups), rows * groups * size)
            for part in ("scales", "biases")
        ]
        return [Written(info.name, "U32", (rows, words), rows * words * 4), *fine]

    @property
    def written_bytes(self) -> int:
        """Bytes that are written."""
        return sum(output.nbytes for output in self.outputs())

    @property
    def alignment(self) -> int:
        """Bytes of a value of the first tensor that is written."""
        return DTYPE_SIZES.get(self.outputs()[0].dtype, 1)


@dataclass(frozen=True, slots=True)
class Shard:
    """A file to be written."""

    file: str
    items: tuple[Item, ...]

    @property
    def source_bytes(self) -> int:
        """Bytes to be read."""
        return sum(item.source_bytes for item in self.items)

    @property
    def written_bytes(self) -> int:
        """Bytes of its tensors."""
        return sum(item.written_bytes for item in self.items)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a conversion writes but for the files that are copied.

    Attributes:
        shards: Files with tensors.
        config: Contents of config.json.
        left_out: Names of tensors that no file gets.
    """

    shards: tuple[Shard, ...]
    config: Mapping[str, Any]
    left_out: tuple[str, ...]

    @property
    def items(self) -> Iterator[Item]:
        """Of all shards."""
        return (item for shard in self.shards for item in shard.items)

    @property
    def source_bytes(self) -> int:
        """Bytes to be read."""
        return sum(shard.source_bytes for shard in self.shards)

    @property
    def written_bytes(self) -> int:
        """Bytes of all tensors that are written."""
        return sum(shard.written_bytes for shard in self.shards)

    def digest(self) -> str:
        """Equal for equal plans over unchanged files only."""
        files = {item.info.file for item in self.items}
        stamps = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(files)]
        items = [
            (
                shard.file,
                item.info.name,
                item.dtype,
                None if item.format is None else asdict(item.format),
            )
            for shard in self.shards
            for item in shard.items
        ]
        text = json.dumps([VERSION, stamps, items, self.config], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def make_shards(items: Iterable[Item], shard_bytes: int = SHARD_BYTES) -> tuple[Shard, ...]:
    """Spread items over files, in the order in which they are stored.

    Inside a file, values of more bytes come first, so that all of them are aligned.
    """
    groups: list[list[Item]] = [[]]
    size = 0
    for item in sorted(items, key=lambda item: (item.info.file, item.source.start)):
        if size >= shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append(item)
        size += item.written_bytes
    names = (
        ["model.safetensors"]
        if len(groups) == 1
        else [
            f"model-{number:05d}-of-{len(groups):05d}.safetensors"
            for number in range(1, len(groups) + 1)
        ]
    )
    return tuple(
        Shard(name, tuple(sorted(group, key=lambda item: -item.alignment)))
        for name, group in zip(names, groups, strict=True)
    )
