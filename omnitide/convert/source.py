"""Rows of stored tensors, read from their files in pieces.

Files are read, not mapped: mapped pages would count as memory of the process. The safetensors
library has checked the headers before (`omnitide.models.headers`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from omnitide.errors import CheckpointError, reason_of
from omnitide.models.headers import TensorInfo

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""NumPy's dtype of the formats that are converted, in safetensors' spelling."""

HEADER_SIZE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Source:
    """A stored tensor and where its bytes lie."""

    info: TensorInfo
    start: int
    stop: int

    def pieces(self, unit: int, bytes_at_once: int) -> Iterator[bytes]:
        """All bytes, in whole units.

        Args:
            unit: Bytes that stay together.
            bytes_at_once: Most bytes of a piece, unless a unit has more.

        Raises:
            CheckpointError: The file can't be read, or has become shorter.
        """
        step = max(bytes_at_once // unit, 1) * unit
        try:
            with self.info.file.open("rb") as file:
                file.seek(self.start)
                for at in range(self.start, self.stop, step):
                    size = min(step, self.stop - at)
                    piece = file.read(size)
                    if len(piece) != size:
                        raise CheckpointError(
                            f"[convert] {self.info.file} ends inside {self.info.name}; "
                            "download it again"
                        )
                    yield piece
        except OSError as error:
            raise CheckpointError(
                f"[convert] can't read {self.info.file}: {reason_of(error)}"
            ) from error

    def blocks(self, columns: int, values_at_once: int) -> Iterator[NDArray[Any]]:
        """The values of a float tensor, shape (some rows, columns) at a time.

        Args:
            columns: Into which all values are laid out.
            values_at_once: Most values of a block, unless a row has more.
        """
        dtype = DTYPES[self.info.dtype]
        row = columns * dtype.itemsize
        for piece in self.pieces(row, values_at_once * dtype.itemsize):
            yield np.frombuffer(piece, dtype).reshape(-1, columns)


def find_sources(file: Path, tensors: list[TensorInfo]) -> list[Source]:
    """Where tensors of one file lie.

    Raises:
        CheckpointError: The header can't be read.
    """
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(HEADER_SIZE_BYTES), "little")
            header = json.loads(opened.read(size))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"[convert] {file} can't be read as safetensors ({error})") from error
    first = HEADER_SIZE_BYTES + size
    sources = []
    for info in tensors:
        start, stop = header[info.name]["data_offsets"]
        sources.append(Source(info, first + start, first + stop))
    return sources
