"""What one layer of a model sees of the bounded cache: the interface of mlx-lm's own caches.

It inherits from none of them. A subclass of their KVCache would be merged into a batch, and
quantised, by methods that know nothing of evictions; here those methods do not exist, and neither
does any name by which mlx-lm recognises a quantised cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlx_lm.models.cache import create_attention_mask

from omnitide.config import RetentionConfig
from omnitide.errors import CacheFileError
from omnitide.mlx_lm.encoding import check_rows, decode_ledger, encode_rows
from omnitide.mlx_lm.ledger import Detached, Ledger
from omnitide.mlx_lm.options import CacheOptions
from omnitide.mlx_lm.policies import make_text_policy
from omnitide.mlx_lm.rows import Rows


class BoundedKVCache:
    """The cache of one full-attention layer. `make_prompt_cache` makes those of all at once."""

    def __init__(self, ledger: Ledger, index: int) -> None:
        """The face of layer `index` of a ledger."""
        self.ledger, self.index = ledger, index

    @property
    def offset(self) -> int:
        """Position of the next token, by which models rotate. After an eviction it is smaller."""
        return self.ledger.state.rows

    def size(self) -> int:
        """Tokens held."""
        return self.ledger.state.rows

    def empty(self) -> bool:
        """Whether nothing has been written."""
        return self._rows.keys is None

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return self._rows.nbytes

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Write the tokens of a pass and get all that attention is to see.

        Args:
            keys, values: Shape (1, heads, num_tokens, head_dim), keys rotated from `offset` on.

        Returns:
            Keys and values, shape (1, heads, offset + num_tokens, head_dim).

        Raises:
            SessionError: The pass is one of several sequences.
            ConfigError: The system prefix does not fit the low watermark.
        """
        return self.ledger.append(self.index, keys, values)

    def keys_and_values(self) -> tuple[Any, Any]:
        """All live rows. None and None before the first token."""
        return self._rows.first(self.ledger.state.rows)

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """The mask of a pass of `N` tokens, as mlx-lm makes it; the same for all layers."""
        return create_attention_mask(
            N, offset=self.offset, return_array=return_array, window_size=window_size
        )

    def is_trimmable(self) -> bool:
        """Whether mlx-lm may take tokens back: only if `draft_tokens` was given.

        Its prompt cache would take back any number, its speculative decoding goes on in silence if
        it may not; so the answer does not change with time.
        """
        return self.ledger.options.draft_tokens > 0

    def trim(self, n: int) -> int:
        """Take the newest `n` tokens back, in all layers: once for a round over them.

        Returns:
            How many were taken back.

        Raises:
            SessionError: Some of them are no longer held as they came.
        """
        return self.ledger.rewind(self.index, n)

    @property
    def state(self) -> tuple[Any, ...]:
        """Keys, values, keys as written, and what the layers share: arrays, numbers, strings."""
        state = self.ledger.state
        rows = encode_rows(self._rows, state.rows, len(state.written))
        return (*rows, self.ledger.encoded())

    @state.setter
    def state(self, value: Sequence[Any]) -> None:
        rows, shared = _taken_apart(value)
        layers = list(self.ledger.state.layers)
        layers[self.index] = rows
        state, pending = decode_ledger(shared, tuple(layers))
        check_rows(rows, state.rows, len(state.written))
        self.ledger.replace_all(state, pending)

    @property
    def meta_state(self) -> str:
        """Nothing: `state` holds all. Asked for by mlx-vlm."""
        return ""

    @meta_state.setter
    def meta_state(self, value: Any) -> None:
        if value:
            raise CacheFileError(
                f"[mlx-lm] the state of a bounded cache has no second part, got {value!r}"
            )

    @classmethod
    def from_state(cls, state: Sequence[Any], meta_state: Any = None) -> BoundedKVCache:
        """A layer with this state, to be read. It does not know its model, so it takes no tokens.

        Raises:
            CacheFileError: The state is of another version, or does not hold together.
        """
        options = CacheOptions("full", RetentionConfig())
        cache = cls(Detached(options, make_text_policy("full")), 0)
        cache.meta_state = meta_state
        cache.state = state
        return cache

    @property
    def _rows(self) -> Rows:
        return self.ledger.state.layers[self.index]


def _taken_apart(state: Sequence[Any]) -> tuple[Rows, Sequence[Any]]:
    if len(state) != 4 or len(state[3]) != 5:
        raise CacheFileError(
            f"[mlx-lm] the state of a bounded cache has 4 parts, the last of 5; got {len(state)}"
        )
    keys, values, written, shared = state
    return Rows(keys, values, written), shared
