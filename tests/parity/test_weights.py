"""Reading safetensors, files written by the safetensors library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from omnitide.backend import Backend
from omnitide.errors import CheckpointError

STORED = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


@pytest.mark.parametrize("stored", STORED.values(), ids=STORED.keys())
def test_stored_dtypes_are_read(
    backend: Backend,
    stored: np.dtype[Any],
    tmp_path: Path,
    rounded: Callable[..., Any],
    assert_matches: Callable[..., None],
) -> None:
    rng = np.random.default_rng(1)
    tensors = {
        "weight": rng.standard_normal((5, 3)).astype(stored),
        "bias": rng.standard_normal(5).astype(stored),
        "scalar": np.array(0.7).astype(stored),
    }
    path = tmp_path / "model.safetensors"
    save_file({**tensors, "unwanted": np.zeros(9, stored)}, path)

    def call() -> dict[str, tuple[str, Any]]:
        read = backend.read_safetensors(path, iter(tensors))
        return {n: (str(a.dtype), backend.to_numpy(a)) for n, a in read.items()}

    got = backend.run(call)
    assert list(got) == list(tensors)
    for name, (device_dtype, values) in got.items():
        assert device_dtype.rpartition(".")[2] == backend.dtype
        # A 16-bit backend reads float64 through float32.
        host = np.float64 if backend.dtype == "float64" else np.float32
        want = rounded(tensors[name].astype(host), backend.dtype)
        assert_matches(values, want, backend.dtype, 0)


def test_a_file_of_mixed_dtypes_is_read(any_backend: Backend, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({name: np.full((2, 2), 1.5, dtype) for name, dtype in STORED.items()}, path)
    read = any_backend.run(any_backend.read_safetensors, path, list(STORED))
    values = any_backend.run(lambda: [any_backend.to_numpy(a).tolist() for a in read.values()])
    assert values == [[[1.5, 1.5], [1.5, 1.5]]] * 4


@pytest.mark.parametrize("dtype", ["float64", "float8_e5m2", "float8_e4m3fnuz", "bool"])
def test_what_else_a_file_holds_may_be_of_any_dtype(
    dtype: str, any_backend: Backend, tmp_path: Path
) -> None:
    """Some are beyond the reader of a backend's own library."""
    path = tmp_path / "model.safetensors"
    other = np.zeros(3, np.dtype(dtype if dtype in ("float64", "bool") else "uint8"))
    save_file({"a": np.full((2, 2), 1.5, np.float32), "other": other}, path)
    if dtype.startswith("float8"):  # safetensors' NumPy side can't write these
        name = {"float8_e5m2": b"F8_E5M2", "float8_e4m3fnuz": b"F8_E4M3FNUZ"}[dtype]
        whole = path.read_bytes()
        size = 8 + int.from_bytes(whole[:8], "little")
        header = whole[8:size].rstrip().replace(b'"U8"', b'"' + name + b'"')
        header += b" " * (-len(header) % 8)
        path.write_bytes(len(header).to_bytes(8, "little") + header + whole[size:])
    read = any_backend.run(any_backend.read_safetensors, path, ["a"])
    assert any_backend.run(lambda: any_backend.to_numpy(read["a"]).tolist()) == [[1.5, 1.5]] * 2


def test_all_missing_names_are_listed(any_backend: Backend, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": np.zeros(2, np.float32)}, path)
    with pytest.raises(CheckpointError, match="lacks 2 tensors: b, c"):
        any_backend.run(any_backend.read_safetensors, path, ["c", "a", "b"])


def test_integers_are_refused(any_backend: Backend, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": np.zeros(2, np.float32), "ids": np.zeros(2, np.int64)}, path)
    with pytest.raises(CheckpointError, match=r"F64, F32, F16, BF16, U32, U8, got ids \(I64\)"):
        any_backend.run(any_backend.read_safetensors, path, ["a", "ids"])


@pytest.mark.parametrize(
    "kept", [0, 5, 60, -1], ids=["empty", "cut-size", "cut-header", "cut-data"]
)
def test_truncated_files_are_refused(any_backend: Backend, kept: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": np.zeros((4, 4), np.float32)}, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match="no complete safetensors file"):
        any_backend.run(any_backend.read_safetensors, path, ["a"])


def test_a_missing_file_is_refused(any_backend: Backend, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        any_backend.run(any_backend.read_safetensors, tmp_path / "nowhere.safetensors", ["a"])
