"""Argument checks that all backends share: the same bad input gives the same error everywhere.

Each raises `ValueError` with op, rule and actual value, and is called before anything is computed
or changed. Only `.shape` of an array is looked at. The checks of the paged cache are in `pools.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omnitide.backend import Array, Matrix


def check_shape(op: str, name: str, array: Array, *shape: int | None) -> None:
    """Require a shape; None stands for any size."""
    actual = tuple(array.shape)
    if len(actual) != len(shape) or any(
        want is not None and want != have for want, have in zip(shape, actual, strict=True)
    ):
        rule = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"[{op}] {name} must have shape ({rule}), got {actual}")


def check_last(op: str, name: str, array: Array, size: int) -> None:
    """Require the size of the last axis."""
    actual = tuple(array.shape)
    if not actual or actual[-1] != size:
        raise ValueError(f"[{op}] the last axis of {name} must have size {size}, got {actual}")


def check_ints(op: str, name: str, values: ArrayLike, limit: int) -> NDArray[np.int64]:
    """Require a flat list of ints in [0, limit), and return it as an array."""
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"[{op}] {name} must be ints of one axis, got {array.dtype} of shape {array.shape}"
        )
    if array.size and not (array.min() >= 0 and array.max() < limit):
        raise ValueError(
            f"[{op}] {name} must lie in [0, {limit}), got {array.min()} to {array.max()}"
        )
    return array.astype(np.int64)


def check_linear(
    x: Array, weight: Array, bias: Array | None = None, residual: Array | None = None
) -> None:
    """x (..., in), weight (out, in), bias (out,), residual (..., out)."""
    check_shape("linear", "weight", weight, None, None)
    check_last("linear", "x", x, weight.shape[1])
    if bias is not None:
        check_shape("linear", "bias", bias, weight.shape[0])
    if residual is not None:
        check_shape("linear", "residual", residual, *x.shape[:-1], weight.shape[0])


def check_gated_mlp(x: Array, norm_weight: Array, gate: Matrix, up: Matrix, down: Matrix) -> None:
    """x (..., size), gate and up (inner, size), down (size, inner)."""
    check_norm("rms_norm", x, norm_weight)
    check_linear(x, *gate)
    check_linear(x, *up)
    lead = tuple(x.shape[:-1])
    inner, other = (np.broadcast_to(0, (*lead, matrix[0].shape[0])) for matrix in (gate, up))
    check_shape("swiglu", "up", other, *inner.shape)
    check_linear(inner, *down, x)


def check_norm(op: str, x: Array, weight: Array, bias: Array | None = None) -> None:
    """x (..., size), weight and bias (size,)."""
    check_shape(op, "weight", weight, None)
    check_last(op, "x", x, weight.shape[0])
    if bias is not None:
        check_shape(op, "bias", bias, weight.shape[0])


def check_logits(op: str, logits: Array) -> None:
    """logits (num_logits,), at least one."""
    check_shape(op, "logits", logits, None)
    if logits.shape[0] == 0:
        raise ValueError(f"[{op}] logits must be at least one, got none")


def check_rotate(x: Array, cos: Array, sin: Array) -> None:
    """x (num_tokens, num_heads, head_dim), cos and sin (num_tokens, head_dim / 2)."""
    check_shape("rotate", "x", x, None, None, None)
    num_tokens, _, head_dim = x.shape
    if head_dim % 2:
        raise ValueError(f"[rotate] head_dim must be even, got {head_dim}")
    check_shape("rotate", "cos", cos, num_tokens, head_dim // 2)
    check_shape("rotate", "sin", sin, num_tokens, head_dim // 2)


def check_segments(
    q: Array,
    k: Array,
    v: Array,
    lengths: Sequence[int],
    key_lengths: Sequence[int] | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Require fitting shapes and lengths, and return the lengths of queries and of keys.

    q (num_tokens, num_heads, head_dim); k, v of one shape (num_keys, num_heads, head_dim), that of
    q without `key_lengths`; lengths that add up to num_tokens, as many that add up to num_keys.
    """
    op = "segment_attention"
    check_shape(op, "q", q, None, None, None)
    check_shape(op, "k", k, q.shape[0] if key_lengths is None else None, *q.shape[1:])
    check_shape(op, "v", v, *k.shape)
    _check_lengths(op, "lengths", lengths, q.shape[0], "tokens")
    if key_lengths is None:
        return tuple(lengths), tuple(lengths)
    _check_lengths(op, "key_lengths", key_lengths, k.shape[0], "keys")
    if len(key_lengths) != len(lengths):
        raise ValueError(
            f"[{op}] key_lengths must be one for each of {len(lengths)} segments, "
            f"got {len(key_lengths)}"
        )
    return tuple(lengths), tuple(key_lengths)


def _check_lengths(op: str, name: str, lengths: Sequence[int], total: int, of: str) -> None:
    if any(length < 1 for length in lengths) or sum(lengths) != total:
        raise ValueError(
            f"[{op}] {name} must be at least 1 and add up to {total} {of}, got a least of "
            f"{min(lengths, default=0)} and a sum of {sum(lengths)}"
        )


def check_concat(arrays: Sequence[Array], axis: int) -> None:
    """At least one array, and shapes that differ on the joined axis only."""
    if not arrays:
        raise ValueError("[concat] at least one array must be given, got none")
    first = tuple(arrays[0].shape)
    if not -len(first) <= axis < len(first):
        raise ValueError(f"[concat] axis must be one of the {len(first)} axes, got {axis}")
    for i, array in enumerate(arrays[1:], start=1):
        shape: list[int | None] = list(first)
        shape[axis] = None
        check_shape("concat", f"array {i}", array, *shape)


def check_random(shape: Sequence[int], scale: float, seed: int) -> tuple[int, ...]:
    """Sizes, scale and seed that are at least 0, and return the shape."""
    sizes = tuple(shape)
    if any(size < 0 for size in sizes) or not scale >= 0 or seed < 0:
        raise ValueError(
            "[random_normal] sizes, scale and seed must be at least 0, "
            f"got {sizes}, {scale} and {seed}"
        )
    return sizes


def check_random_words(shape: Sequence[int], seed: int) -> tuple[int, ...]:
    """Sizes and seed that are at least 0, and return the shape."""
    sizes = tuple(shape)
    if any(size < 0 for size in sizes) or seed < 0:
        raise ValueError(
            f"[random_words] sizes and seed must be at least 0, got {sizes} and {seed}"
        )
    return sizes


def check_repeat(repeat: int) -> None:
    """At least one call."""
    if repeat < 1:
        raise ValueError(f"[timed] repeat must be at least 1, got {repeat}")
