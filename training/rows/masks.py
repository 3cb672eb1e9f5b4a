"""Who sees whom in a training row, as four numbers a token.

A row holds documents one after another, each a stream and then its branches. A stream is one run of
tokens, so what a token sees is a run of its own stream and the run of its own branch:

    [first, seen)   its stream; of what is older than `horizon` only the tokens that are `kept`
    [own, itself]   its branch; for a token of the stream, itself

The block mask of FlexAttention follows from these numbers without looking at pairs of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

BLOCK = 128
"""Tokens of a block on either side."""

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of row, head, place of the query and place of the key."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """What each token of some rows sees; all of shape (rows, tokens).

    Attributes:
        first, seen, horizon, own: int32, places in the row, see above.
        kept: bool, whether it stays visible to what comes long after.
    """

    first: Tensor
    seen: Tensor
    horizon: Tensor
    own: Tensor
    kept: Tensor

    def dense(self) -> Tensor:
        """The whole mask, bool, (rows, 1, tokens, tokens)."""
        rows, tokens = self.first.shape
        row = torch.arange(rows, device=self.first.device)[:, None, None]
        place = torch.arange(tokens, device=self.first.device)
        return self._rule()(row, row, place[:, None], place[None, :])[:, None]

    def blocks(self) -> BlockMask:
        """The same for FlexAttention: empty blocks are skipped, full ones are not masked."""
        rows, tokens = self.first.shape
        device = self.first.device
        start = torch.arange(0, tokens, BLOCK, device=device)  # of blocks of keys
        stop = start + BLOCK
        first, seen, horizon, own = (
            x[:, :, None] for x in (self.first, self.seen, self.horizon, self.own)
        )
        place = torch.arange(tokens, device=device)[None, :, None]
        recent = torch.maximum(first, horizon)
        old_stop = torch.minimum(seen, horizon)
        # Kept tokens before a place: a run holds one if the count at its ends differs.
        count = torch.nn.functional.pad(self.kept.cumsum(1, dtype=torch.int32), (1, 0))
        low, high = torch.maximum(first, start), torch.minimum(old_stop, stop)
        held = count.gather(1, high.clamp(0, tokens).flatten(1).long()) - count.gather(
            1, low.clamp(0, tokens).flatten(1).long()
        )
        old = (high > low) & (held.view_as(high) > 0)
        touched = old | (torch.maximum(recent, start) < torch.minimum(seen, stop))
        touched = touched | (torch.maximum(own, start) < torch.minimum(place + 1, stop))
        whole = (first <= start) & (seen >= stop)
        old_length = (torch.minimum(horizon, stop) - start).clamp(min=0)
        whole = whole & ((old_length == 0) | (held.view_as(high) == old_length))
        shape = (rows, tokens // BLOCK, BLOCK, tokens // BLOCK)
        any_seen, all_seen = touched.view(shape).any(2), whole.view(shape).all(2)
        partial_blocks = _listed(any_seen & ~all_seen)
        full_blocks = _listed(all_seen)
        return BlockMask.from_kv_blocks(
            *partial_blocks, *full_blocks, BLOCK_SIZE=BLOCK, mask_mod=self._rule()
        )

    def _rule(self) -> Rule:
        """Whether a query sees a key, in the form that FlexAttention compiles: a closure."""
        first, seen, horizon, own, kept = (
            self.first, self.seen, self.horizon, self.own, self.kept
        )  # fmt: skip

        def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            del head
            in_stream = (key >= first[row, query]) & (key < seen[row, query])
            in_stream = in_stream & ((key >= horizon[row, query]) | kept[row, key])
            in_branch = (key >= own[row, query]) & (key <= query)
            return in_stream | in_branch

        return sees


def attend(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | Tensor) -> Tensor:
    """Attention of heads (rows, heads, tokens, head size) under either form of a mask."""
    if isinstance(mask, BlockMask):
        out = flex_attention(q, k, v, block_mask=mask)
        return out[0] if isinstance(out, tuple) else out
    return scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _listed(dense: Tensor) -> tuple[Tensor, Tensor]:
    """Number and indices of the blocks in each row of blocks, with an axis for heads."""
    chosen = dense[:, None].to(torch.int32)
    order = chosen.argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32)
