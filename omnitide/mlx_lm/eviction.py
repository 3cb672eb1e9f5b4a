"""One eviction: tokens become units, a policy decides, all layers keep the same rows.

Nothing that was given is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from omnitide.errors import ConfigError
from omnitide.history import History
from omnitide.mlx_lm.markers import Markers
from omnitide.mlx_lm.options import CacheOptions
from omnitide.mlx_lm.pending import Tokens
from omnitide.mlx_lm.prompt_state import PromptState
from omnitide.mlx_lm.rotation import Rotation
from omnitide.mlx_lm.rows import STEP
from omnitide.mlx_lm.segments import cut
from omnitide.retention import RetentionPolicy, make_plan, protected


@dataclass(frozen=True, slots=True)
class Evicted:
    """What comes out.

    Attributes:
        state: After the eviction.
        tail: Tokens that are in no unit yet.
    """

    state: PromptState
    tail: Tokens


def evict(
    state: PromptState,
    pending: Tokens,
    options: CacheOptions,
    policy: RetentionPolicy,
    markers: Markers,
    rotations: Sequence[Rotation | None],
) -> Evicted:
    """Cut the pending tokens into units and delete what the policy does not keep.

    Args:
        state: Whose rows exceed the high watermark.
        pending: Tokens of the rows behind the history's, shape (rows - len(history),).
        options: Watermarks and budgets.
        policy: Decides.
        markers: Of the tokenizer.
        rotations: Of each bounded layer.

    Raises:
        ConfigError: The system prefix alone exceeds the low watermark.
    """
    pieces = cut(
        pending[: len(pending) - options.draft_tokens],
        state.place,
        markers,
        options.longest_unit,
    )
    history = state.history
    for unit in pieces.units:
        first = len(history)
        history = history.append(unit, np.arange(first, first + len(unit), dtype=np.int32))
    tail = pending[pieces.used :]
    _check_prefix(history, options)
    grown = replace(state, history=history, place=pieces.place)
    if not len(history):
        return Evicted(grown, tail)
    plan = make_plan(policy, history, options.beside(len(tail)))
    if not plan.num_deleted:
        return Evicted(grown, tail)
    keep = np.concatenate([np.flatnonzero(plan.keep), np.arange(len(history), state.rows)])
    written = np.concatenate([state.written, np.arange(len(state.written), state.rows)])[keep]
    position = np.arange(len(keep))
    shifts = (position - written).astype(np.int32)
    reserve = -(-(options.retention.high_watermark + 1) // STEP) * STEP
    layers = tuple(
        rows.kept(keep, len(state.written), shifts, rotation, reserve)
        for rows, rotation in zip(state.layers, rotations, strict=True)
    )
    return Evicted(
        replace(
            grown,
            layers=layers,
            rows=len(keep),
            history=_renumbered(plan.after),
            written=written.astype(np.int32),
            evictions=state.evictions + 1,
        ),
        tail,
    )


def _check_prefix(history: History, options: CacheOptions) -> None:
    prefix = int(np.count_nonzero(protected(history)))
    low = options.retention.low_watermark
    if prefix > low:
        raise ConfigError(
            f"[mlx-lm] the system prefix has {prefix:,} tokens or more, the low watermark is "
            f"{low:,}; raise high_watermark and low_watermark or shorten the system message"
        )


def _renumbered(history: History) -> History:
    """The history with its cells in the first slots."""
    slots = np.ascontiguousarray(history.cells["slot"])
    place: NDArray[np.int32] = np.arange(len(slots), dtype=np.int32)
    return history.move(slots, place)
