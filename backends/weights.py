"""Reading safetensors files: what the backends have in common.

Files are opened with the safetensors library, which reads data only: no code of a file is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (teaches NumPy the name "bfloat16", which safetensors asks for)
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from omnitide.errors import CheckpointError

FLOATS = ("F64", "F32", "F16", "BF16")
"""Stored dtypes that are converted when read, in the format's own spelling."""

PACKED = ("U32", "U8")
"""Stored dtypes of quantised matrices: packed elements, and scales of some modes."""


def stored_dtypes(path: Path, names: Iterable[str]) -> dict[str, str]:
    """The stored dtype of each named tensor, by name, in the order of `names`.

    Raises:
        CheckpointError: The file can't be read, lacks one of the names (all are listed), or holds
            one that is neither a float nor a part of a quantised matrix.
    """
    with _opened(path) as file:
        wanted = list(names)
        missing = sorted(set(wanted) - set(file.keys()))
        if missing:
            raise CheckpointError(
                f"[read_safetensors] {path} lacks {len(missing)} tensors: {', '.join(missing)}"
            )
        dtypes = {name: str(file.get_slice(name).get_dtype()) for name in wanted}
    odd = [f"{name} ({dtype})" for name, dtype in dtypes.items() if dtype not in FLOATS + PACKED]
    if odd:
        raise CheckpointError(
            f"[read_safetensors] {path}: tensors must be {', '.join(FLOATS + PACKED)}, "
            f"got {', '.join(odd)}"
        )
    return dtypes


def file_dtypes(path: Path) -> frozenset[str]:
    """The stored dtypes of all tensors of a file, in the format's own spelling.

    Raises:
        CheckpointError: The file can't be read.
    """
    with _opened(path) as file:
        return frozenset(str(file.get_slice(name).get_dtype()) for name in file.keys())  # noqa: SIM118


def read_tensors(path: Path, names: Iterable[str]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Name and values of each named tensor, one at a time, in the stored dtype."""
    wanted = list(stored_dtypes(path, names))
    with _opened(path) as file:
        for name in wanted:
            yield name, file.get_tensor(name)


def converted(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Floats in `dtype`; parts of a quantised matrix (unsigned integers) as they are."""
    return values if values.dtype.kind == "u" else values.astype(dtype)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        file = safe_open(path, framework="np")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"[read_safetensors] {path} is no complete safetensors file ({error}); fetch it again"
        ) from error
    with file as opened:
        yield opened
