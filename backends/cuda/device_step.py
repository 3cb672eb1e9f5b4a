"""A step on the device: one packed array of 32-bit words, shared by all layers and heads.

Everything that a kernel needs to know of a pass is read from device memory, so that a recorded pass
serves every later step: only the words change, never an address. Host and device hold the same
layout; a step is one copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import cp
from omnitide.pages import SUBBLOCK_SIZE
from omnitide.step import Step


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """Views into the packed words.

    Attributes:
        max_tiles: Tiles that there is room for; a grid may be made for so many.
        num_queries: New tokens.
        words: All of it, int32.
        num_tiles: Live tiles, int32, shape (1,).
        subblocks: Subblock ids, int32, shape (max_tiles,).
        masks: Live rows, uint32, shape (max_tiles,).
        least, greatest: Orders, int32, shape (max_tiles,).
        orders: Order of each row, -1 where dead, int32, shape (max_tiles, SUBBLOCK_SIZE).
        query_slots: Where K and V of the new tokens go, int32, shape (num_queries,).
        query_orders: int32, shape (num_queries,).
        query_cos, query_sin: Float32, shape (num_queries, head_dim / 2).
    """

    max_tiles: int
    num_queries: int
    words: Array
    num_tiles: Array
    subblocks: Array
    masks: Array
    least: Array
    greatest: Array
    orders: Array
    query_slots: Array
    query_orders: Array
    query_cos: Array
    query_sin: Array

    @classmethod
    def empty(cls, max_tiles: int, num_queries: int, half: int) -> DeviceStep:
        """Room for steps of so many tiles and queries; `half` is head_dim / 2."""
        sizes = _sizes(max_tiles, num_queries, half)
        words = cp.empty(sum(sizes), np.int32)
        parts = [words[stop - size : stop] for size, stop in zip(sizes, _stops(sizes), strict=True)]
        return cls(
            max_tiles=max_tiles,
            num_queries=num_queries,
            words=words,
            num_tiles=parts[0],
            subblocks=parts[1],
            masks=parts[2].view(np.uint32),
            least=parts[3],
            greatest=parts[4],
            orders=parts[5].reshape(max_tiles, SUBBLOCK_SIZE),
            query_slots=parts[6],
            query_orders=parts[7],
            query_cos=parts[8].view(np.float32).reshape(num_queries, half),
            query_sin=parts[9].view(np.float32).reshape(num_queries, half),
        )

    @classmethod
    def of(cls, step: Step) -> DeviceStep:
        """A step in an array of its own size."""
        made = cls.empty(len(step.tiles.subblocks), step.num_queries, step.query_cos.shape[1])
        made.load(step)
        return made

    def fits(self, max_tiles: int, num_queries: int) -> bool:
        """Whether this is the room for such steps."""
        return (self.max_tiles, self.num_queries) == (max_tiles, num_queries)

    def newest(self) -> DeviceStep:
        """The same words with the last query alone: `Step.newest` on the device."""
        return replace(
            self,
            num_queries=1,
            query_slots=self.query_slots[-1:],
            query_orders=self.query_orders[-1:],
            query_cos=self.query_cos[-1:],
            query_sin=self.query_sin[-1:],
        )

    def load(self, step: Step) -> None:
        """Copy a step here. It has `num_queries` queries and at most `max_tiles` tiles."""
        self.load_words(packed(step, self.max_tiles))

    def load_words(self, words: NDArray[np.int32]) -> None:
        """Copy what `packed` gave here. They have been read when this returns, the stream goes on.

        Source: CUDA's cudaMemcpyAsync, which stages memory that is not page-locked.
        """
        self.words.set(words, stream=cp.cuda.get_current_stream())


def _sizes(max_tiles: int, num_queries: int, half: int) -> tuple[int, ...]:
    tiles = (max_tiles,) * 4
    turns = num_queries * half
    return (1, *tiles, max_tiles * SUBBLOCK_SIZE, num_queries, num_queries, turns, turns)


def _stops(sizes: tuple[int, ...]) -> list[int]:
    return [int(stop) for stop in np.cumsum(sizes)]


def packed(step: Step, max_tiles: int) -> NDArray[np.int32]:
    """The words of a step, with room for so many tiles."""
    tiles = step.tiles
    parts = (
        np.array([len(tiles.subblocks)], np.int32),
        tiles.subblocks,
        tiles.masks.view(np.int32),
        tiles.least,
        tiles.greatest,
        tiles.orders.reshape(-1),
        step.query_slots,
        step.query_orders,
        np.ascontiguousarray(step.query_cos, np.float32).reshape(-1).view(np.int32),
        np.ascontiguousarray(step.query_sin, np.float32).reshape(-1).view(np.int32),
    )
    sizes = _sizes(max_tiles, step.num_queries, step.query_cos.shape[1])
    words = np.zeros(sum(sizes), np.int32)
    for part, size, stop in zip(parts, sizes, _stops(sizes), strict=True):
        words[stop - size : stop - size + len(part)] = part
    return words
