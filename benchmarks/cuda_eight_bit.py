"""How fast the CUDA backend makes rows of 8 bits wide, and packs new ones.

    python benchmarks/cuda_eight_bit.py [--cells 2816 65536] [--kv-heads 4] [--head-dim 128]
        [--dtype bfloat16] [--tokens 1 512] [--repeat 20]

`widen` over cells as evictions leave them, `pack_rows` for new tokens: medians of recorded graphs
that go round several layers, in microseconds a layer. Terabytes a second count each byte once, read
or written: rows, scales, angles (once for all KV heads) and floats. Beside it the share of what a
copy reaches. Few cells stay in the L2 cache from one layer to the next, as they do in a pass: the
scratch and the angles are those of all layers, and then there may be more than a copy reaches.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import cupy as cp
import numpy as np
from cuda_decode import BYTES_IN_ROTATION, DTYPES, median_of, random, scattered
from cuda_quantized import copy_bandwidth

from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.backends.cuda.eight_bit import EightBitRows
from omnitide.backends.cuda.eight_bit_pools import Scratch
from omnitide.pages import PAGE_SIZE
from omnitide.step import Step


class Layers:
    """Packed pools of several layers with random rows, and the scratch they share."""

    def __init__(self, pages: int, args: argparse.Namespace, count: int) -> None:
        shape = (pages, args.kv_heads, PAGE_SIZE, args.head_dim)
        self.rows = EightBitRows(Compiler())
        self.packed = [
            (
                *(cp.random.randint(-127, 128, shape, dtype=cp.int8) for _ in range(2)),
                *(cp.random.uniform(0.01, 0.1, shape[:3], dtype=np.float32) for _ in range(2)),
            )
            for _ in range(count)
        ]
        self.factors = cp.random.uniform(0.5, 2, shape[1::2], dtype=np.float32)
        self.scratch = Scratch.empty(shape, DTYPES[args.dtype])
        for table in self.scratch.angles:
            table[...] = cp.random.uniform(-1, 1, table.shape, dtype=np.float32)

    def widen(self, step: DeviceStep) -> None:
        """All layers in turn."""
        for packed in self.packed:
            self.rows.widen(packed, self.factors, self.scratch.angles, self.scratch.wide, step)

    def pack(self, k: Any, v: Any, step: DeviceStep) -> None:
        """New tokens into all layers in turn."""
        for packed in self.packed:
            self.rows.pack(packed, self.factors, self.scratch.angles, k, v, step)


def recorded(run: Callable[[], None], launches: int, repeat: int) -> float:
    """Median microseconds a launch of a recorded call."""
    stream = cp.cuda.get_current_stream()
    run()
    stream.begin_capture()
    run()
    graph = stream.end_capture()
    return median_of(lambda: graph.launch(stream), launches, repeat, stream)


def step_of(slots: np.ndarray[Any, Any], queries: int, head_dim: int) -> DeviceStep:
    """The last cells are new."""
    orders = np.arange(len(slots), dtype=np.int32)
    table = np.ones((len(slots), head_dim // 2), np.float32)
    new = slice(len(slots) - queries, None)
    return DeviceStep.of(
        Step(slots, orders, table, table, slots[new], orders[new], table[new], table[new])
    )


def main() -> None:
    """Print a line for each number of cells and each number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, nargs="+", default=[2816, 65536])
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 512])
    parser.add_argument("--repeat", type=int, default=20)
    args = parser.parse_args()
    cp.cuda.Stream(non_blocking=True).use()
    best, item = copy_bandwidth(), DTYPES[args.dtype].itemsize
    heads, dim, rng = args.kv_heads, args.head_dim, np.random.default_rng(0)
    packed, angles, wide = 2 * heads * (dim + 4), 4 * dim, 2 * heads * dim * item
    print(f"copy {best:.2f} TB/s (read and written); {heads} KV heads of {dim}, {args.dtype}")
    print(f"{'':10} {'rows':>7} {'us':>9} {'TB/s':>6} {'of copy':>8}")

    def show(name: str, rows: int, microseconds: float, bytes_of_row: int) -> None:
        speed = rows * bytes_of_row / microseconds / 1e6
        print(f"{name:10} {rows:7,} {microseconds:9.2f} {speed:6.2f} {speed / best:8.0%}")

    for cells in args.cells:
        pages = -(-cells // PAGE_SIZE) * 5 // 4 + 2
        count = max(4, round(BYTES_IN_ROTATION / (cells * packed)))
        layers = Layers(pages, args, count)
        step = step_of(scattered(cells, pages, rng), 1, dim)
        time = recorded(lambda layers=layers, step=step: layers.widen(step), count, args.repeat)
        show("widen", cells, time, packed + angles + wide)
    for tokens in args.tokens:
        pages = -(-tokens // PAGE_SIZE) + 2
        layers = Layers(pages, args, 28)
        k, v = (random((tokens, heads, dim), args.dtype) for _ in range(2))
        step = step_of(np.arange(tokens, dtype=np.int32), tokens, dim)
        time = recorded(
            lambda layers=layers, k=k, v=v, step=step: layers.pack(k, v, step), 28, args.repeat
        )
        show("pack_rows", tokens, time, packed + wide + 2 * angles)


if __name__ == "__main__":
    main()
