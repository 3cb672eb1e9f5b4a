"""Quantised matrices of every kind on every backend, against MLX's own quantisation.

The matrices are made by `mx.quantize`, written as safetensors, and read by the backend under test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from omnitide.backend import Backend
from omnitide.dequantize import dequantize, unpack
from omnitide.quantized import QuantizedWeight

mx = pytest.importorskip("mlx.core", reason="MLX, the oracle, is not installed")

KINDS = {
    **{f"affine-{b}-{g}": ("affine", b, g) for b in (4, 8) for g in (32, 64, 128)},
    "mxfp4": ("mxfp4", 4, 32),
    "nvfp4": ("nvfp4", 4, 16),
}
STORED = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def _host(array: Any) -> np.ndarray[Any, Any]:
    """An MLX array on the host, bit for bit."""
    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(array)


def _made(kind: tuple[str, int, int], shape: tuple[int, int], stored: str) -> Any:
    """Parts by MLX, and the values that MLX makes of them in float32."""
    mode, bits, group = kind
    rng = np.random.default_rng(shape[0])
    values = rng.standard_normal(shape).astype(np.float32)
    values[0] = 0
    values[1] = np.abs(values[1])  # the scale of an affine group is negative here
    dtype = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}[stored]
    packed, scales, *biases = mx.quantize(mx.array(values).astype(dtype), group, bits, mode)
    parts = [packed, scales, *biases]
    wide = [p.astype(mx.float32) if mode == "affine" and i else p for i, p in enumerate(parts)]
    options = {"group_size": group, "bits": bits, "mode": mode}
    dense = mx.dequantize(*wide, **options, dtype=mx.float32)
    return [_host(part) for part in parts], _host(dense)


def _weight(kind: tuple[str, int, int], parts: list[Any]) -> QuantizedWeight:
    mode, bits, group = kind
    packed, scales, *biases = parts
    return QuantizedWeight(packed, scales, biases[0] if biases else None, bits, group, mode)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[str, int, int]:
    """Mode, bits and group size."""
    return KINDS[request.param]


@pytest.mark.parametrize("stored", STORED)
def test_dequantised_values_are_mlx_bits(kind: tuple[str, int, int], stored: str) -> None:
    parts, want = _made(kind, (40, 256), stored)
    got = dequantize(_weight(kind, parts), np.dtype(np.float32))
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_rows_are_those_of_the_whole(kind: tuple[str, int, int]) -> None:
    parts, want = _made(kind, (40, 256), "float32")
    rows = np.array([7, 0, 39, 7])
    got = dequantize(_weight(kind, parts), np.dtype(np.float32), rows)
    np.testing.assert_array_equal(got, want[rows])


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4"])
def test_every_code_of_element_and_scale(mode: str) -> None:
    _, bits, group = KINDS[mode]
    scales = np.arange(256, dtype=np.uint8)[:, None]
    packed = np.tile(np.array([0x76543210, 0xFEDCBA98], np.uint32), (256, group // 16))
    want = mx.dequantize(
        mx.array(packed), mx.array(scales), None, group, bits, mode, dtype=mx.float32
    )
    got = dequantize(_weight(KINDS[mode], [packed, scales]), np.dtype(np.float32))
    np.testing.assert_array_equal(got, _host(want))


@pytest.mark.parametrize("bits", [4, 8])
def test_elements_are_unpacked_from_the_lowest_bits_on(bits: int) -> None:
    words = np.array([[0x76543210, 0xFEDCBA98]], np.uint32)
    want = [int(w) >> bits * i & 2**bits - 1 for w in words[0] for i in range(32 // bits)]
    assert unpack(words, bits).tolist() == [want]


def _read(backend: Backend, folder: Path, kind: tuple[str, int, int], parts: Any) -> Any:
    names = ("packed", "scales", "biases")[: len(parts)]
    save_file(dict(zip(names, parts, strict=True)), folder / "parts.safetensors")
    read = backend.read_safetensors(folder / "parts.safetensors", names)
    return _weight(kind, [read[name] for name in names])


def _skip_unknown(backend: Backend, kind: tuple[str, int, int]) -> None:
    if kind[0] not in backend.quantized_modes:
        pytest.skip(f"{backend.name} does not compute with {kind[0]}, and refuses it when loading")


def _rounded_dense(kind: Any, parts: Any, dtype: str, rounded: Any) -> Any:
    """Values in float64 of what a backend of a dtype holds: its scales and biases are rounded."""
    if kind[0] != "affine":
        return dequantize(_weight(kind, parts), np.dtype(np.float64))
    fine = [rounded(part.astype(np.float32), dtype) for part in parts[1:]]
    return dequantize(_weight(kind, [parts[0], *fine]), np.dtype(np.float64))


@pytest.mark.parametrize("rows", [0, 1, 5, 33])
def test_linear(
    backend: Backend,
    kind: tuple[str, int, int],
    rows: int,
    tmp_path: Path,
    rounded: Callable[..., Any],
    tolerance: Callable[[str], float],
    assert_matches: Callable[..., None],
) -> None:
    _skip_unknown(backend, kind)
    rng = np.random.default_rng(rows)
    parts, _ = _made(kind, (48, 256), "float32")
    x, bias, residual = (
        rounded(rng.standard_normal(shape), backend.dtype)
        for shape in ((rows, 256), (48,), (rows, 48))
    )

    def call() -> Any:
        weight = _read(backend, tmp_path, kind, parts)
        given = [backend.asarray(a) for a in (x, bias, residual)]
        return backend.to_numpy(backend.linear(given[0], weight, given[1], given[2]))

    dense = _rounded_dense(kind, parts, backend.dtype, rounded)
    want = x @ dense.T + bias + residual
    assert_matches(backend.run(call), want, backend.dtype, tolerance(backend.dtype))


def test_take(
    backend: Backend,
    kind: tuple[str, int, int],
    tmp_path: Path,
    rounded: Callable[..., Any],
    tolerance: Callable[[str], float],
    assert_matches: Callable[..., None],
) -> None:
    _skip_unknown(backend, kind)
    parts, _ = _made(kind, (48, 128), "float32")
    rows = [3, 0, 47, 3]

    def call() -> Any:
        weight = _read(backend, tmp_path, kind, parts)
        return backend.to_numpy(backend.take(weight, rows))

    want = _rounded_dense(kind, parts, backend.dtype, rounded)[rows]
    # Two roundings at most: of q * scale, and of the sum.
    exact = 1e-6 if backend.dtype in ("float32", "float64") else tolerance(backend.dtype)
    assert_matches(backend.run(call), want, backend.dtype, exact)


def test_no_rows_are_taken(any_backend: Backend, tmp_path: Path) -> None:
    parts, _ = _made(KINDS["affine-4-64"], (8, 64), "float32")

    def call() -> Any:
        weight = _read(any_backend, tmp_path, KINDS["affine-4-64"], parts)
        return any_backend.take(weight, []).shape

    assert tuple(any_backend.run(call)) == (0, 64)


def test_project_and_gated_mlp_take_arrays_and_quantised_ones_together(
    backend: Backend,
    tmp_path: Path,
    rounded: Callable[..., Any],
    tolerance: Callable[[str], float],
    assert_matches: Callable[..., None],
) -> None:
    kind = KINDS["affine-4-64"]
    rng = np.random.default_rng(1)
    parts, _ = _made(kind, (128, 128), "float32")
    x, norm, plain = (
        rounded(a, backend.dtype)
        for a in (
            rng.standard_normal((3, 128)),
            1 + 0.1 * rng.standard_normal(128),
            rng.standard_normal((128, 128)) / 12,
        )
    )

    def call() -> Any:
        weight = _read(backend, tmp_path, kind, parts)
        one, scale, dense = (backend.asarray(a) for a in (x, norm, plain))
        mixed = backend.project(one, scale, 1e-6, [(dense, None), (weight, None)])
        gated = backend.gated_mlp(one, scale, 1e-6, (weight, None), (dense, None), (dense, None))
        return [backend.to_numpy(a) for a in (*mixed, gated)]

    held = _rounded_dense(kind, parts, backend.dtype, rounded)
    normed = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * norm
    gate = normed @ held.T
    inner = gate / (1 + np.exp(-gate)) * (normed @ plain.T)
    wanted = (normed @ plain.T, normed @ held.T, x + inner @ plain.T)
    for got, want in zip(backend.run(call), wanted, strict=True):
        assert_matches(got, want, backend.dtype, tolerance(backend.dtype))


def test_wrong_shapes_are_refused(any_backend: Backend, tmp_path: Path) -> None:
    parts, _ = _made(KINDS["affine-4-64"], (8, 64), "float32")

    def call() -> Any:
        weight = _read(any_backend, tmp_path, KINDS["affine-4-64"], parts)
        return any_backend.linear(any_backend.asarray(np.zeros((2, 63))), weight)

    with pytest.raises(ValueError, match=r"\[linear\] the last axis of x must have size 64"):
        any_backend.run(call)


@pytest.mark.parametrize(
    ("scales", "biases", "mode", "message"),
    [
        ((2, 3), (2, 3), "affine", r"must have shape \(2, 2\) for 2 rows of 128 elements"),
        ((2, 2), (2, 1), "affine", r"must have shape \(2, 2\)"),
        ((2, 2), None, "affine", "mode affine must have biases"),
        ((2, 2), (2, 2), "mxfp4", "no other mode may"),
    ],
)
def test_parts_that_do_not_belong_together(
    scales: Any, biases: Any, mode: str, message: str
) -> None:
    arrays = [None if shape is None else np.zeros(shape, np.float32) for shape in (scales, biases)]
    with pytest.raises(ValueError, match=message):
        QuantizedWeight(np.zeros((2, 16), np.uint32), *arrays, 4, 64, mode)


def test_bytes_are_those_of_all_parts() -> None:
    parts, _ = _made(KINDS["affine-4-64"], (8, 128), "float16")
    assert _weight(KINDS["affine-4-64"], parts).nbytes == 8 * (64 + 2 * 2 * 2)
