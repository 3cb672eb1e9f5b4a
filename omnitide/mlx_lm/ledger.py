"""What the layers of one prompt cache share: which tokens their rows hold, and when some leave.

Invariant: between forward passes all layers hold the same rows. A pass is over when every layer has
been given its tokens; only then are they counted, and only then can an eviction happen. What a pass
fetched before are arrays of their own, so it may still be computing when rows leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from omnitide.errors import ConfigError, SessionError
from omnitide.mlx_lm.encoding import Encoded, encode_ledger
from omnitide.mlx_lm.eviction import evict
from omnitide.mlx_lm.listening import Heard
from omnitide.mlx_lm.markers import Markers
from omnitide.mlx_lm.options import CacheOptions
from omnitide.mlx_lm.pending import Pending
from omnitide.mlx_lm.prompt_state import PromptState
from omnitide.mlx_lm.rotation import Rotation, Shape
from omnitide.mlx_lm.rows import Rows
from omnitide.retention import RetentionPolicy


@dataclass(slots=True)
class Rewound:
    """The last rewind: what was asked, what was taken back, and which layers asked."""

    asked: int
    taken: int
    layers: set[int]


class Ledger:
    """The shared part of a prompt cache.

    Attributes:
        options: What was asked for.
        markers: Marks of the tokenizer.
        shapes: Heads, size of a key and size of a value of each layer.
        heard: Tells the tokens that the model is given. None where they can't be heard.
        state: Replaced as a whole.
        pending: Tokens of the rows that are in no unit.
    """

    def __init__(
        self,
        options: CacheOptions,
        policy: RetentionPolicy,
        markers: Markers,
        rotations: Sequence[Rotation | None],
        shapes: Sequence[Shape],
        heard: Heard | None,
    ) -> None:
        """Of as many layers as there are `rotations`; None is a layer without positions."""
        self.options, self.markers, self.shapes = options, markers, tuple(shapes)
        self._policy, self.heard = policy, heard
        self._rotations = tuple(rotations)
        self.state = PromptState(tuple(Rows() for _ in rotations))
        self.pending = Pending()
        self._given: set[int] = set()  # layers that have the tokens of the pass under way
        self._count = 0  # its tokens
        self._ids: Any = None
        self._rewound = Rewound(0, 0, set())
        self._encoded: tuple[PromptState, int, Encoded] | None = None

    def append(self, layer: int, keys: Any, values: Any) -> tuple[Any, Any]:
        """Take in a layer's part of a forward pass. Keys and values of all its rows.

        A layer that is given tokens twice, or another number of them, shows that the last pass
        broke off; that pass is forgotten, and its rows are written over.

        Raises:
            SessionError: The pass is one of several sequences.
            ConfigError: The system prefix does not fit the low watermark.
        """
        batch, _, count, _ = keys.shape
        if batch != 1:
            raise SessionError(
                f"[mlx-lm] a bounded cache holds one sequence, got a batch of {batch}; "
                "make a cache for each"
            )
        if layer in self._given or count != self._count:
            self._given.clear()
        if not self._given:
            self._count = count
            self._ids = None if self.heard is None else self.heard.take(count)
            self._rewound = Rewound(0, 0, set())
        fetched = self.state.layers[layer].append(self.state.rows, keys, values)
        self._given.add(layer)
        if len(self._given) == len(self.state.layers):
            self._finish(count)
        return fetched

    def rewind(self, layer: int, count: int) -> int:
        """Take the newest `count` tokens back, for all layers, when the first of them asks.

        Returns:
            The tokens taken back: `count`, or all there are.

        Raises:
            SessionError: They are not all held without a gap; nothing has changed.
        """
        last = self._rewound
        if last.layers and layer not in last.layers and last.asked == count:
            last.layers.add(layer)
            return last.taken
        asked = count
        count = min(count, self.state.rows) if self.state.evictions == 0 else count
        if count > self.pending.count:
            raise SessionError(
                f"[mlx-lm] the newest {count:,} tokens are asked back, the last "
                f"{self.pending.count:,} are held as they came, what lies before was cut; "
                "start a new cache from the shorter text"
            )
        self._given.clear()
        self._rewound = Rewound(asked, count, {layer})
        self.pending.drop(count)
        rows = self.state.rows - count
        self.state = replace(
            self.state,
            rows=rows,
            written=self.state.written[:rows],
            tokens_seen=self.state.tokens_seen - count,
        )
        return count

    def encoded(self) -> Encoded:
        """The ledger as plain values, for the state of a layer; made once for all of them."""
        last = self._encoded
        if last is None or last[0] is not self.state or last[1] != self.pending.count:
            last = (self.state, self.pending.count, encode_ledger(self.state, self.pending))
            self._encoded = last
        return last[2]

    def replace_all(self, state: PromptState, pending: Pending) -> None:
        """Take over a state that was stored."""
        self._given.clear()
        self.state, self.pending = state, pending

    def _finish(self, count: int) -> None:
        self.pending.add(self._ids, count)
        self._given.clear()
        self.state = replace(
            self.state,
            rows=self.state.rows + count,
            tokens_seen=self.state.tokens_seen + count,
        )
        if self._policy.bounded and self.state.rows > self.options.retention.high_watermark:
            self._evict()

    def _evict(self) -> None:
        evicted = evict(
            self.state,
            self.pending.read(),
            self.options,
            self._policy,
            self.markers,
            self._rotations,
        )
        self.state, self.pending = evicted.state, Pending(evicted.tail)


class Detached(Ledger):
    """The ledger of a layer that was made from its state alone: it can be read, not added to."""

    def __init__(self, options: CacheOptions, policy: RetentionPolicy) -> None:
        super().__init__(options, policy, Markers(), (None,), (), None)

    def append(self, layer: int, keys: Any, values: Any) -> tuple[Any, Any]:
        """Refuse: without the model, keys could not be turned."""
        raise ConfigError(
            "[mlx-lm] a cache made from a state alone does not know its model; make caches with "
            "omnitide.mlx_lm.make_prompt_cache and set their state"
        )
