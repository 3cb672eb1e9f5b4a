"""Every operation of models, on every backend and dtype, against naive float64 NumPy.

`OPERATIONS` is the table: operation, cases, inputs, oracle, how to call it. Inputs in float64 are
arrays of the device, rounded to the backend's dtype before either side sees them; all other inputs
stay on the host. Oracles are written from the definitions, one head and one token at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backend import Backend

Inputs = dict[str, Any]


@dataclass(frozen=True)
class OpSpec:
    """One row of the table.

    Attributes:
        op: Name of the backend's method.
        cases: Arguments of `inputs`, by the reason for the case.
        inputs: Makes the keyword arguments of the operation from a random generator and a case.
        oracle: The right result from the same keyword arguments, in float64.
        exact: Whether data is only moved, so that equal bits are asked for.
    """

    op: str
    cases: dict[str, tuple[Any, ...]]
    inputs: Callable[..., Inputs]
    oracle: Callable[..., NDArray[np.float64]]
    exact: bool = False


# -- oracles ------------------------------------------------------------------------------------
def linear(x: Any, weight: Any, bias: Any = None, residual: Any = 0) -> NDArray[np.float64]:
    out = np.einsum("...i,oi->...o", x, weight)
    return (out if bias is None else out + bias) + residual


def each_row(function: Callable[[Any], Any], x: Any) -> NDArray[np.float64]:
    rows = [function(row) for row in x.reshape(-1, x.shape[-1])]
    return np.array(rows).reshape(x.shape)


def rms_norm(x: Any, weight: Any, eps: float) -> NDArray[np.float64]:
    return each_row(lambda row: row / math.sqrt(sum(row**2) / len(row) + eps) * weight, x)


def project(x: Any, norm_weight: Any, eps: float, matrices: Any) -> NDArray[np.float64]:
    """The parts side by side: the comparator takes one array."""
    normed = rms_norm(x, norm_weight, eps)
    return np.concatenate([linear(normed, *matrix) for matrix in matrices], axis=-1)


def gated_mlp(
    x: Any, norm_weight: Any, eps: float, gate: Any, up: Any, down: Any
) -> NDArray[np.float64]:
    normed = rms_norm(x, norm_weight, eps)
    return x + linear(swiglu(linear(normed, *gate), linear(normed, *up)), *down)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> NDArray[np.float64]:
    def row_norm(row: Any) -> Any:
        mean = sum(row) / len(row)
        variance = sum((row - mean) ** 2) / len(row)
        return (row - mean) / math.sqrt(variance + eps) * weight + bias

    return each_row(row_norm, x)


def swiglu(gate: Any, up: Any) -> NDArray[np.float64]:
    # tanh, because exp(-gate) overflows far below 0.
    return gate * 0.5 * (1 + np.tanh(gate / 2)) * up


def gelu(x: Any) -> NDArray[np.float64]:
    return np.array([0.5 * a * math.erfc(-a / math.sqrt(2)) for a in x.flat]).reshape(x.shape)


def gelu_tanh(x: Any) -> NDArray[np.float64]:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu(x: Any) -> NDArray[np.float64]:
    return np.array([max(a, 0.0) for a in x.flat]).reshape(x.shape)


def rotate(x: Any, cos: Any, sin: Any) -> NDArray[np.float64]:
    out = np.empty_like(x)
    half = x.shape[-1] // 2
    for token in range(x.shape[0]):
        for i in range(half):
            a, b = x[token, :, i], x[token, :, i + half]
            c, s = float(cos[token, i]), float(sin[token, i])
            out[token, :, i] = a * c - b * s
            out[token, :, i + half] = b * c + a * s
    return out


def segment_attention(
    q: Any, k: Any, v: Any, lengths: Any, scale: float, key_lengths: Any = None
) -> NDArray[np.float64]:
    out = np.empty_like(q)
    segment = np.repeat(np.arange(len(lengths)), lengths)
    of_key = segment
    if key_lengths is not None:
        of_key = np.repeat(np.arange(len(lengths)), key_lengths)
    for token in range(len(q)):
        seen = of_key == segment[token]
        for head in range(q.shape[1]):
            scores = k[seen, head] @ q[token, head] * scale
            weights = np.exp(scores - scores.max())
            out[token, head] = weights @ v[seen, head] / weights.sum()
    return out


def copy(array: Any) -> NDArray[np.float64]:
    return np.array(array)


def concat(arrays: Any, axis: int) -> NDArray[np.float64]:
    front = [np.moveaxis(array, axis, 0) for array in arrays]
    return np.moveaxis(np.array([part for array in front for part in array]), 0, axis)


def take(array: Any, rows: Any) -> NDArray[np.float64]:
    return np.array([array[int(row)] for row in rows]).reshape(len(rows), *array.shape[1:])


# -- inputs -------------------------------------------------------------------------------------
def normal(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    return rng.standard_normal(shape)


def linear_inputs(
    rng: Any, lead: tuple[int, ...], size: int, out: int, bias: bool, residual: bool = False
) -> Inputs:
    given: Inputs = {"x": normal(rng, *lead, size), "weight": normal(rng, out, size)}
    if bias:
        given["bias"] = normal(rng, out)
    if residual:
        given["residual"] = normal(rng, *lead, out)
    return given


def matrix(rng: Any, out: int, size: int, bias: bool) -> tuple[Any, Any]:
    """Weight and bias, so large that outputs are about 1."""
    return normal(rng, out, size) * size**-0.5, normal(rng, out) if bias else None


def project_inputs(rng: Any, rows: int, size: int, outs: tuple[int, ...], bias: bool) -> Inputs:
    return {
        "x": normal(rng, rows, size),
        "norm_weight": 1 + 0.1 * normal(rng, size),
        "eps": 1e-6,
        "matrices": [matrix(rng, out, size, bias) for out in outs],
    }


def gated_inputs(rng: Any, rows: int, size: int, inner: int, bias: bool) -> Inputs:
    return {
        "x": normal(rng, rows, size),
        "norm_weight": 1 + 0.1 * normal(rng, size),
        "eps": 1e-6,
        "gate": matrix(rng, inner, size, bias),
        "up": matrix(rng, inner, size, bias),
        "down": matrix(rng, size, inner, bias),
    }


def norm_inputs(rng: Any, shape: tuple[int, ...], size: float, bias: bool) -> Inputs:
    given: Inputs = {
        "x": size * (normal(rng, *shape) + 0.5),
        "weight": 1 + 0.1 * normal(rng, shape[-1]),
        "eps": 1e-6,
    }
    return {**given, "bias": normal(rng, shape[-1])} if bias else given


def swiglu_inputs(rng: Any, shape: tuple[int, ...], size: float) -> Inputs:
    return {"gate": size * normal(rng, *shape), "up": normal(rng, *shape)}


def gelu_inputs(rng: Any, shape: tuple[int, ...], size: float) -> Inputs:
    return {"x": size * normal(rng, *shape)}


def rotate_inputs(rng: Any, tokens: int, heads: int, head_dim: int) -> Inputs:
    angles = 30_000 * rng.random((tokens, head_dim // 2))
    return {
        "x": normal(rng, tokens, heads, head_dim),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
    }


def segment_inputs(
    rng: Any,
    lengths: tuple[int, ...],
    heads: int,
    head_dim: int,
    key_lengths: tuple[int, ...] | None = None,
) -> Inputs:
    q = normal(rng, sum(lengths), heads, head_dim)
    k, v = normal(rng, 2, sum(key_lengths or lengths), heads, head_dim)
    made = {"q": q, "k": k, "v": v, "lengths": lengths, "scale": head_dim**-0.5}
    return made if key_lengths is None else {**made, "key_lengths": key_lengths}


def copy_inputs(rng: Any, shape: tuple[int, ...]) -> Inputs:
    return {"array": normal(rng, *shape)}


def concat_inputs(rng: Any, shapes: tuple[tuple[int, ...], ...], axis: int) -> Inputs:
    return {"arrays": [normal(rng, *shape) for shape in shapes], "axis": axis}


def take_inputs(rng: Any, shape: tuple[int, ...], rows: Any) -> Inputs:
    return {"array": normal(rng, *shape), "rows": rows}


OPERATIONS = [
    OpSpec(
        "linear",
        {
            "one-row": ((1,), 64, 48, True),
            "rows": ((17,), 65, 33, True),
            "no-bias": ((5,), 7, 129, False),
            "two-leading-axes": ((2, 3), 16, 8, True),
            "no-leading-axis": ((), 16, 8, True),
            "no-rows": ((0,), 16, 8, True),
            "long-sum": ((2,), 3000, 3, False),
            "residual": ((17,), 64, 40, True, True),
            "residual-no-bias": ((1,), 64, 40, False, True),
        },
        linear_inputs,
        linear,
    ),
    OpSpec(
        "project",
        {
            "decode": (1, 256, (256, 40, 40), True),
            "decode-one-matrix": (1, 64, (1000,), False),
            "decode-odd": (1, 66, (33, 7), True),
            "few-rows": (5, 64, (64, 16, 16), True),
            "rows": (70, 64, (64, 16, 16), False),
            "no-rows": (0, 64, (8, 4), True),
        },
        project_inputs,
        project,
    ),
    OpSpec(
        "gated_mlp",
        {
            "decode": (1, 64, 352, False),
            "decode-bias": (1, 64, 200, True),
            "decode-odd": (1, 66, 35, True),
            "few-rows": (3, 64, 96, True),
            "rows": (70, 64, 96, False),
            "no-rows": (0, 64, 96, False),
        },
        gated_inputs,
        gated_mlp,
    ),
    OpSpec(
        "rms_norm",
        {
            "rows": ((5, 96), 1.0, False),
            "heads": ((3, 4, 80), 1.0, False),
            "large-values": ((2, 64), 300.0, False),
            "tiny-values-meet-eps": ((2, 64), 1e-3, False),
        },
        norm_inputs,
        rms_norm,
    ),
    OpSpec(
        "layer_norm",
        {
            "rows": ((5, 96), 1.0, True),
            "odd-size": ((3, 7), 1.0, True),
            "large-values": ((2, 64), 30.0, True),
            "tiny-values-meet-eps": ((2, 64), 1e-3, True),
        },
        norm_inputs,
        layer_norm,
    ),
    OpSpec(
        "swiglu",
        {
            "rows": ((5, 33), 1.0),
            "one": ((1,), 1.0),
            # exp(-gate) overflows float32 beyond 88; 60 standard deviations go far beyond.
            "overflow": ((50, 20), 60.0),
        },
        swiglu_inputs,
        swiglu,
    ),
    OpSpec(
        "gelu",
        {
            "rows": ((50, 33), 1.0),
            "tails": ((50, 33), 4.0),
            "far": ((50, 20), 60.0),
            "small": ((5, 7), 1e-3),
        },
        gelu_inputs,
        gelu,
    ),
    OpSpec(
        "gelu_tanh",
        {
            "rows": ((50, 33), 1.0),
            "tails": ((50, 33), 4.0),
            "far": ((50, 20), 60.0),
            "small": ((5, 7), 1e-3),
        },
        gelu_inputs,
        gelu_tanh,
    ),
    OpSpec(
        "relu",
        {"rows": ((50, 33), 1.0), "two-leading-axes": ((2, 3, 8), 1.0), "none": ((0, 8), 1.0)},
        gelu_inputs,
        relu,
        exact=True,
    ),
    OpSpec(
        "rotate",
        {"text": (5, 4, 128), "vision": (9, 2, 80), "one-token": (1, 3, 64), "none": (0, 2, 64)},
        rotate_inputs,
        rotate,
    ),
    OpSpec(
        "segment_attention",
        {
            "equal-windows": ((16, 16, 16), 2, 80),
            "ragged": ((7, 64, 1, 1, 30, 5, 5), 2, 64),
            "vision-head-72": ((9, 13), 3, 72),
            "one-token": ((1,), 2, 80),
            "one-segment": ((70,), 2, 64),
            "no-segment": ((), 2, 64),
            "few-queries": ((8,), 3, 128, (70,)),
            "few-queries-of-equal-segments": ((8, 8, 8), 1, 128, (33, 33, 33)),
            "few-keys": ((70, 5), 2, 64, (1, 66)),
            "ragged-queries-and-keys": ((7, 7, 64, 1, 30), 2, 72, (150, 9, 1, 64, 65)),
            "equal-queries-ragged-keys": ((50, 50, 50), 2, 64, (50, 100, 150)),
        },
        segment_inputs,
        segment_attention,
    ),
    OpSpec(
        "copy",
        {"matrix": ((3, 5),), "one": ((1,),), "none": ((0, 4),), "no-axis": ((),)},
        copy_inputs,
        copy,
        exact=True,
    ),
    OpSpec(
        "concat",
        {
            "rows": (((2, 3), (1, 3), (4, 3)), 0),
            "one": (((2, 3),), 0),
            "last-axis": (((2, 3, 4), (2, 3, 1)), -1),
            "empty-part": (((0, 3), (2, 3)), 0),
        },
        concat_inputs,
        concat,
        exact=True,
    ),
    OpSpec(
        "take",
        {
            "repeats-and-ends": ((7, 3), [6, 0, 0, 3]),
            "int32-array": ((7, 3), np.array([1, 5], np.int32)),
            "three-axes": ((4, 2, 5), [3, 1]),
            "none": ((4, 2), []),
        },
        take_inputs,
        take,
        exact=True,
    ),
]

CASES = [
    pytest.param(spec, case, id=f"{spec.op}-{reason}")
    for spec in OPERATIONS
    for reason, case in spec.cases.items()
]


def over_arrays(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the device arrays among the inputs (float64, also in lists and tuples).

    Segment lengths are a tuple too, of ints.
    """
    if isinstance(value, list | tuple):
        return type(value)(over_arrays(function, part) for part in value)
    is_device = isinstance(value, np.ndarray) and value.dtype == np.float64
    return function(value) if is_device else value


@pytest.mark.parametrize(("spec", "case"), CASES)
def test_operation_matches_oracle(
    backend: Backend,
    spec: OpSpec,
    case: tuple[Any, ...],
    rounded: Callable[..., Any],
    tolerance: Callable[[str], float],
    assert_matches: Callable[..., None],
) -> None:
    made = spec.inputs(np.random.default_rng(7), *case)
    inputs = {
        name: over_arrays(lambda a: rounded(a, backend.dtype), value)
        for name, value in made.items()
    }

    def call() -> tuple[str, NDArray[Any]]:
        given = {name: over_arrays(backend.asarray, value) for name, value in inputs.items()}
        out = getattr(backend, spec.op)(**given)
        if isinstance(out, list):
            out = backend.concat(out, axis=-1)
        return str(out.dtype), backend.to_numpy(out)

    device_dtype, got = backend.run(call)
    assert device_dtype.rpartition(".")[2] == backend.dtype
    allowed = 0 if spec.exact else tolerance(backend.dtype)
    assert_matches(got, spec.oracle(**inputs), backend.dtype, allowed)


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)], ids=str)
def test_arrays_go_to_the_device_and_back(
    backend: Backend,
    shape: tuple[int, ...],
    rounded: Callable[..., Any],
    assert_matches: Callable[..., None],
) -> None:
    values = rounded(np.random.default_rng(3).standard_normal(shape), backend.dtype)
    got = backend.run(lambda: backend.to_numpy(backend.asarray(values)))
    assert_matches(got, values, backend.dtype, 0)


def test_arrays_are_copies(backend: Backend) -> None:
    values = np.ones(3, np.float64 if backend.dtype == "float64" else np.float32)

    def change_all_others() -> NDArray[Any]:
        array = backend.asarray(values)
        values[:] = 2
        backend.to_numpy(array)[:] = 3
        return backend.to_numpy(array)

    assert backend.run(change_all_others).tolist() == [1, 1, 1]


@pytest.mark.parametrize("scale", [1.0, 30.0, 5_000.0])
@pytest.mark.parametrize("count", [1, 7, 1000, 152_064])
def test_log_softmax_matches_oracle(
    backend: Backend, count: int, scale: float, rounded: Callable[..., Any]
) -> None:
    """In float32 at least, whatever the dtype: probabilities of a large vocabulary need it."""
    logits = rounded(scale * np.random.default_rng(3).standard_normal(count), backend.dtype)
    got = backend.run(lambda: backend.to_numpy(backend.log_softmax(backend.asarray(logits))))
    shifted = logits - logits.max()
    want = shifted - math.log(math.fsum(np.exp(shifted)))
    assert got.dtype == (np.float64 if backend.dtype == "float64" else np.float32)
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=3e-5)


@pytest.mark.parametrize("count", [1, 7, 1000, 152_064])
def test_argmax_takes_the_first_of_equals(
    backend: Backend, count: int, rounded: Callable[..., Any]
) -> None:
    logits = rounded(np.random.default_rng(4).standard_normal(count), backend.dtype)
    greatest = np.sort(np.random.default_rng(5).integers(0, count, 3))
    logits[greatest] = 9

    def best(values: NDArray[np.float64]) -> int:
        return backend.run(lambda: backend.argmax(backend.asarray(values)))

    assert best(logits) == greatest[0]
    assert best(np.full(count, -3.0)) == 0
    logits[-1] = np.nan
    assert best(logits) == -1


def test_inventory_is_complete(any_backend: Backend, request: pytest.FixtureRequest) -> None:
    """Every method of the protocol is in a table of this folder or has a test of its own."""
    elsewhere = {
        "asarray": "test_arrays_go_to_the_device_and_back",
        "to_numpy": "test_arrays_go_to_the_device_and_back",
        "read_safetensors": "test_stored_dtypes_are_read",
        "new_pools": "test_new_pools_have_the_shape_of_the_layout",
        "pool_scratch_bytes": "test_pools_hold_as_much_scratch_as_is_told",
        "grow_pools": "test_growing_keeps_contents",
        "append": "test_append_writes_its_rows_and_no_others",
        "attention": "test_attention_matches_oracle",
        "attention_bytes": "test_attention_holds_what_is_told_and_not_much_less",
        "attention_mass": "test_attention_mass_matches_oracle",
        "attention_weights": "test_attention_weights_match_oracle",
        "migrate": "test_migrate_is_a_simultaneous_copy",
        "argmax": "test_argmax_takes_the_first_of_equals",
        "log_softmax": "test_log_softmax_matches_oracle",
        "forward_pass": "test_passes_of_a_stream_match_oracle",
        "prepare": "test_passes_of_a_stream_match_oracle",
        "run": "test_run_returns_and_raises_what_the_call_does",
        "synchronize": "test_synchronize_accepts_any_number_of_arrays",
        "random_normal": "test_random_values_are_normal_and_repeat",
        "random_words": "test_every_bit_of_random_words_is_random",
        "timed": "test_timed_makes_each_call_once_and_in_order",
        "memory_free": "test_some_memory_is_free",
        "peak_memory": "test_peak_memory_never_falls",
    }
    methods = {name for name, value in vars(Backend).items() if callable(value) and name[0] != "_"}
    assert {spec.op for spec in OPERATIONS} | set(elsewhere) == methods
    assert all(callable(getattr(any_backend, name)) for name in methods)
    folder = Path(request.path).parent
    text = "".join(path.read_text("utf-8") for path in folder.glob("test_*.py"))
    undefined = [test for test in elsewhere.values() if f"def {test}(" not in text]
    assert undefined == []
