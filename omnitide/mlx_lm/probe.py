"""What a model does with its caches, found out by running it on a few single tokens, twice.

A token alone attends to itself only, so its keys and values depend on its position through the
rotation and nothing else. They are compared at two positions: values must be equal; keys must be
equal (a layer without positions) or turned by one of the model's rotary embeddings. So what an
eviction will do to keys has been seen to be right on this very model, or the model is refused.

Where some layers have a sliding window, three more runs show that they and the others take
positions each from their own caches: after an eviction these differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_lm.models.cache import make_prompt_cache as own_caches

from omnitide.errors import BackendError, ConfigError
from omnitide.mlx_lm.listening import Heard, embeddings, leave, listen
from omnitide.mlx_lm.rotation import Rotation, Shape

_FAR = 997
"""Position of the second run: far enough that slow pairs turn, near enough for any model."""

_TOKENS = 8

_SLACK = 32
"""Rounding allowed, in units of the dtype's precision at the largest key."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What was found.

    Attributes:
        own: The caches that the model makes itself, empty, one a layer.
        bounded: Index of each that the bounded cache takes the place of.
        rotations: How keys of each of these are turned; None where they hold no position.
        shapes: Heads, size of a key and size of a value, of each of these.
        heard: Tells the tokens. None where they can't be heard.
    """

    own: list[Any]
    bounded: tuple[int, ...]
    rotations: tuple[Rotation | None, ...]
    shapes: tuple[Shape, ...]
    heard: Heard | None


class Recorder:
    """Stands in for a cache and records what it is given."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.keys: Any = None
        self.values: Any = None

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Record."""
        self.keys, self.values = keys, values
        return keys, values

    def make_mask(self, N: int, **_: Any) -> None:
        """None: one token needs no mask."""


def probe(model: Any) -> Probed:
    """Find out how a model of mlx-lm uses its caches. Runs a few forward passes of one token each.

    Raises:
        ConfigError: No layer holds a full history.
        BackendError: Keys are not what a rotary embedding makes of them, or the model does not
            follow mlx-lm's interface.
    """
    name = f"{type(model).__module__.rpartition('.')[2]} ({type(model).__name__})"
    try:
        own = list(own_caches(model))
    except (AttributeError, TypeError) as error:
        raise BackendError(f"[mlx-lm] {name} is no model of mlx-lm: {error}") from error
    full = [i for i, cache in enumerate(own) if type(cache) is KVCache]
    if not full:
        kinds = sorted({type(cache).__name__ for cache in own})
        raise ConfigError(
            f"[mlx-lm] no layer of {name} keeps a full history (it has {', '.join(kinds)}), so "
            "there is nothing to bound; use its own cache"
        )
    found = embeddings(model)
    ears = [listen(embedding) for embedding in found]
    near, ids = _run(model, dict.fromkeys(full, 0), found, name)
    heard = None
    for embedding, ear in zip(found, ears, strict=True):
        told, ear.ids = ear.ids, None
        if heard is None and told is not None and mx.array_equal(told, ids):
            heard = ear
        else:
            leave(embedding)
    far, _ = _run(model, dict.fromkeys(full, _FAR), found, name)
    _check_apart(model, full, own, found, name)
    if heard is not None:
        heard.ids = None  # those of the probe are no tokens of a text
    used = [i for i in full if near[i].keys is not None and far[i].keys is not None]
    if not used:
        raise BackendError(f"[mlx-lm] {name} does not use the caches it is given")
    rotations: list[Rotation | None] = []
    for i in used:
        _check_values(near[i], far[i], i, name)
        rotations.append(_rotation(near[i], far[i], _candidates(model, i), i, name))
    shapes = tuple(
        (int(near[i].keys.shape[1]), int(near[i].keys.shape[3]), int(near[i].values.shape[3]))
        for i in used
    )
    return Probed(own, tuple(used), tuple(rotations), shapes, heard)


def _run(
    model: Any, offsets: dict[int, int], found: Sequence[Any], name: str
) -> tuple[dict[int, Recorder], Any]:
    """One pass over single tokens, as a batch, at a position for each of some layers.

    Returns:
        What each of these was given, and the tokens.
    """
    vocabulary = min((e.weight.shape[0] for e in found), default=2)
    count = min(_TOKENS, vocabulary)
    ids = mx.array(np.linspace(0, vocabulary - 1, count).astype(np.int32))[:, None]
    caches = list(own_caches(model))
    recorders = {i: Recorder(offset) for i, offset in offsets.items()}
    for i, recorder in recorders.items():
        caches[i] = recorder
    try:
        model(ids, cache=caches)
    except (AttributeError, TypeError, ValueError) as error:
        raise BackendError(
            f"[mlx-lm] {name} does not use its caches as models of mlx-lm do ({error}); "
            "use its own cache"
        ) from error
    mx.eval([(r.keys, r.values) for r in recorders.values()])
    return recorders, ids


def _check_apart(
    model: Any, full: Sequence[int], own: Sequence[Any], found: Sequence[Any], name: str
) -> None:
    """Moving the positions of full layers must not move those of a window, nor the other way."""
    window = [i for i, cache in enumerate(own) if type(cache) is RotatingKVCache]
    if not window:
        return
    layers = {**dict.fromkeys(full, 0), **dict.fromkeys(window, 0)}
    still, _ = _run(model, layers, found, name)
    for moved, others in ((full, window), (window, full)):
        run, _ = _run(model, {**layers, **dict.fromkeys(moved, _FAR)}, found, name)
        for i in others:
            if still[i].keys is not None and not _agree(run[i].keys, still[i].keys):
                raise BackendError(
                    f"[mlx-lm] layer {i} of {name} takes its positions from the cache of another "
                    f"layer ({moved[0]}, say), which is not cut as its own is; use its own cache"
                )


def _check_values(near: Recorder, far: Recorder, layer: int, name: str) -> None:
    if not _agree(near.values, far.values):
        raise BackendError(
            f"[mlx-lm] in layer {layer} of {name} values depend on the position (it adds positions "
            "to its tokens, or keeps compressed keys), so what is left after an eviction can't be "
            "moved up; use its own cache"
        )


def _rotation(
    near: Recorder, far: Recorder, candidates: Iterator[Rotation | None], layer: int, name: str
) -> Rotation | None:
    rows = near.keys.transpose(2, 1, 0, 3)  # the batch as rows of one sequence
    wanted = far.keys.transpose(2, 1, 0, 3)
    shifts = np.full(rows.shape[2], _FAR, np.int32)
    for rotation in candidates:
        try:
            turned = rows if rotation is None else rotation.turn(rows, shifts)
            agrees = _agree(turned, wanted)
        except (TypeError, ValueError):
            continue  # an embedding of other sizes, or one that can't turn rows by offsets
        if agrees:
            return rotation
    raise BackendError(
        f"[mlx-lm] in layer {layer} of {name} no rotary embedding turns a key from one position to "
        "another, so what is left after an eviction can't be moved up; use its own cache"
    )


def _candidates(model: Any, layer: int) -> Iterator[Rotation | None]:
    """Rotations that a layer may use, the likely ones first; None for no rotation last."""
    layers = model.layers
    near = [layers[layer]] if layer < len(layers) else []
    seen: set[int] = set()
    for root in (*near, model):
        for path, module in root.named_modules():
            name = path.rpartition(".")[2].lower()
            rotary = isinstance(module, nn.RoPE) or "rope" in name or "rotary" in name
            if rotary and id(module) not in seen:
                seen.add(id(module))
                yield Rotation(module)
    yield None


def _agree(one: Any, other: Any) -> bool:
    if one.shape != other.shape:
        return False
    largest = float(mx.max(mx.abs(other.astype(mx.float32))))
    apart = float(mx.max(mx.abs(one.astype(mx.float32) - other.astype(mx.float32))))
    return apart <= _SLACK * mx.finfo(one.dtype).eps * largest
