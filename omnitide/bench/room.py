"""Making a benchmark fit the memory that there is."""

from __future__ import annotations

from math import prod

from omnitide.backend import Backend
from omnitide.bench.packing import Packing, tensor_bytes
from omnitide.bench.settings import Course
from omnitide.bench.shapes import ModelShape
from omnitide.errors import CapacityError
from omnitide.figures import ITEMSIZES
from omnitide.models.names import EMBEDDING, text_tensors
from omnitide.models.text_config import TextConfig

USABLE = 0.9
"""Share of the free memory that a benchmark takes."""

POOL_ARRAYS = 3
"""Arrays that a cell lies in: K, V, and on some backends turned keys."""

FLOAT = 4
"""Bytes of a scale of packed keys and values, and of an angle."""


def kv_bytes(
    text: TextConfig, itemsize: int, layers: int | None = None, kv_bits: int | None = None
) -> int:
    """Bytes of K and V of a cell in so many layers, in all if None; packed with their scales."""
    layers = text.num_layers if layers is None else layers
    row = text.head_dim * itemsize if kv_bits is None else text.head_dim * kv_bits // 8 + FLOAT
    return 2 * layers * text.num_kv_heads * row


def weight_bytes(text: TextConfig, itemsize: int, packing: Packing | None = None) -> int:
    """Bytes of weights that a pass reads: all but the token embeddings."""
    return sum(
        tensor_bytes(shape, itemsize, packing)
        for name, shape in text_tensors(text).items()
        if text.tied or name != EMBEDDING
    )


def matrix_flops(text: TextConfig, tokens: int) -> int:
    """Operations of the matrix products of a pass.

    The vocabulary is for its last token alone, and so is the last block but for keys and values.
    """
    tensors = text_tensors(text)
    every = sum(prod(shape) for shape in tensors.values() if len(shape) == 2)
    vocabulary = prod(tensors[EMBEDDING])
    blocks = every - vocabulary * (1 if text.tied else 2)
    keys_and_values = 2 * text.num_kv_heads * text.head_dim * text.hidden_size
    spared = (tokens - 1) * (blocks // text.num_layers - keys_and_values)
    return 2 * (tokens * blocks - spared + vocabulary)


def fit_layers(
    backend: Backend,
    shape: ModelShape,
    asked: int | None,
    tokens: int,
    at_once: int,
    course: Course,
    packing: Packing | None = None,
    kv_bits: int | None = None,
) -> ModelShape:
    """The shape with as many layers as fit beside their cache.

    Args:
        backend: Says how much memory is free. On its thread.
        shape: As published.
        asked: Layers that were asked for; None: all.
        tokens: Cells that the pools hold.
        at_once: Tokens of a pass.
        course: Gets a note where layers are left out.
        packing: How matrices are quantised. None: they are not.
        kv_bits: Of packed keys and values. None: they are not packed.

    Raises:
        CapacityError: Not even one layer fits.
    """
    text, itemsize = shape.text, ITEMSIZES[backend.dtype]
    wanted = text.num_layers if asked is None else asked
    fixed, layer = _needed(shape, itemsize, at_once, packing)
    kept, scratch = _cache_needed(text, itemsize, kv_bits)
    fixed, layer = fixed + tokens * scratch, layer + tokens * kept
    free = int(USABLE * backend.memory_free())
    layers = min(wanted, (free - fixed) // layer)
    need = fixed + wanted * layer
    if layers < 1:
        raise CapacityError(
            f"[bench] one layer of {shape.name} with {tokens:,} cells needs "
            f"{(fixed + layer) / 2**30:.1f} GiB, {free / 2**30:.1f} GiB can be used; take a "
            "smaller --shape or --history"
        )
    if layers < wanted:
        course.note(
            f"{layers} of {text.num_layers} layers were run: {wanted} need {need / 2**30:.1f} GiB, "
            f"{free / 2**30:.1f} GiB can be used"
        )
    elif layers < text.num_layers:
        course.note(f"{layers} of {text.num_layers} layers were run, as asked")
    return shape.cut(layers)


def fit_copies(
    backend: Backend, bytes_each: int, wanted: int, least: int, what: str, course: Course
) -> int:
    """How many pools, or regions of one, fit to be gone through in turn.

    Args:
        backend: Says how much memory is free. On its thread.
        bytes_each: Of one of them.
        wanted: As many as are good.
        least: Fewer than these are refused.
        what: Needs them, for messages.
        course: Gets a note where there are fewer than wanted.

    Raises:
        CapacityError: Not even `least` fit.
    """
    free = int(USABLE * backend.memory_free())
    copies = min(wanted, free // bytes_each)
    if copies < least:
        raise CapacityError(
            f"[bench] {what} needs {least * bytes_each / 2**30:.2f} GiB, {free / 2**30:.2f} GiB "
            "can be used; take a smaller --history or --rows"
        )
    if copies < wanted:
        course.note(
            f"{what}: the last-level cache may hold what is read, for only {copies} of {wanted} "
            "copies fit the memory"
        )
    return copies


def _needed(
    shape: ModelShape, itemsize: int, at_once: int, packing: Packing | None
) -> tuple[int, int]:
    """Bytes of weights and of a pass whatever the layers, and of each layer's weights."""
    text = shape.text
    one, none = shape.cut(1).text, shape.cut(0).text
    embeddings = tensor_bytes(text_tensors(text)[EMBEDDING], itemsize, packing)
    rows = 8 * text.hidden_size + 4 * text.intermediate_size
    fixed = weight_bytes(none, itemsize, packing) + embeddings + itemsize * at_once * rows
    return fixed, weight_bytes(one, itemsize, packing) - weight_bytes(none, itemsize, packing)


def _cache_needed(text: TextConfig, itemsize: int, kv_bits: int | None) -> tuple[int, int]:
    """Bytes of a cell in each layer, and in what all layers share."""
    floats = kv_bytes(text, itemsize, 1)
    if kv_bits is None:
        return floats * POOL_ARRAYS // 2, 0
    # A layer's cells as floats while it attends, and what turns their keys.
    return kv_bytes(text, itemsize, 1, kv_bits), floats + FLOAT * text.head_dim
