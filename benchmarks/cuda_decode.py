"""Decode attention of one layer on CUDA: ours over scattered live cells, PyTorch's over dense ones.

    python benchmarks/cuda_decode.py [--queries 1] [--dtype bfloat16] [--repeat 20]

Needs CuPy and a GPU; PyTorch's columns need PyTorch. Every figure is the median of `--repeat` runs
of a recorded graph of many launches, divided by the launches, in microseconds; beside it the bytes
of K and V in TB/s. The launches go round several layers, so that the L2 cache holds none of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

import cupy as cp
import ml_dtypes
import numpy as np

from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.decode import DecodeAttention
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE
from omnitide.step import Step

HEADS = ((16, 2), (28, 4), (32, 8))
CELLS = (2_048, 2_816, 4_096, 8_192, 32_768, 65_536)
HEAD_DIM = 128
SCALE = HEAD_DIM**-0.5
DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
BYTES_IN_ROTATION = 400e6


def scattered(cells: int, num_pages: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Slots as evictions leave them: whole subblocks in any order, one in 16 with 20 live rows."""
    blocks = rng.permutation(num_pages * PAGE_SIZE // SUBBLOCK_SIZE)
    live = np.ones((len(blocks), SUBBLOCK_SIZE), np.bool_)
    live[::16, 20:] = False
    slots = blocks[:, None] * SUBBLOCK_SIZE + np.arange(SUBBLOCK_SIZE)
    return slots[live][:cells].astype(np.int32)


def dense(cells: int) -> np.ndarray[Any, Any]:
    """Slots from 0 on."""
    return np.arange(cells, dtype=np.int32)


def alternate(cells: int) -> np.ndarray[Any, Any]:
    """Every other subblock."""
    block, row = np.divmod(np.arange(cells, dtype=np.int32), SUBBLOCK_SIZE)
    return 2 * block * SUBBLOCK_SIZE + row


def make_step(slots: np.ndarray[Any, Any], queries: int, rng: np.random.Generator) -> DeviceStep:
    """The newest `queries` cells look at all before them."""
    orders = np.arange(len(slots), dtype=np.int32)
    angles = rng.uniform(-3, 3, (queries, HEAD_DIM // 2)).astype(np.float32)
    none = np.zeros((len(slots), HEAD_DIM // 2), np.float32)
    new = slice(len(slots) - queries, None)
    return DeviceStep.of(
        Step(slots, orders, none, none, slots[new], orders[new], np.cos(angles), np.sin(angles))
    )


def random(shape: tuple[int, ...], dtype: str) -> Any:
    """Normal values on the device."""
    values = cp.random.standard_normal(int(np.prod(shape)), dtype=np.float32)
    return values.reshape(shape).astype(DTYPES[dtype])


def median_of(run: Callable[[], None], launches: int, repeat: int, stream: Any) -> float:
    """Median microseconds a launch."""
    times = []
    for _ in range(repeat):
        start, stop = cp.cuda.Event(), cp.cuda.Event()
        start.record(stream)
        run()
        stop.record(stream)
        stop.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, stop) * 1e3 / launches)
    return median(times)


def rounds(cells: int, kv_heads: int) -> tuple[int, int]:
    """Layers to go round, and launches in a graph."""
    layers = max(2, round(BYTES_IN_ROTATION / (cells * kv_heads * HEAD_DIM * 4)))
    return layers, max(layers, 24)


def time_ours(
    attention: DecodeAttention,
    slots: np.ndarray[Any, Any],
    heads: tuple[int, int],
    args: argparse.Namespace,
) -> float:
    """Microseconds a launch of ours."""
    num_heads, kv_heads = heads
    step = make_step(slots, args.queries, np.random.default_rng(1))
    num_pages = int(slots.max()) // PAGE_SIZE + 1
    layers, launches = rounds(len(slots), kv_heads)
    pools = [
        [random((num_pages, kv_heads, PAGE_SIZE, HEAD_DIM), args.dtype) for _ in range(2)]
        for _ in range(layers)
    ]
    q = random((args.queries, num_heads, HEAD_DIM), args.dtype)
    cp.cuda.Device().synchronize()
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        attention(q, *pools[0], step, SCALE)
        stream.begin_capture()
        kept = [attention(q, *pools[i % layers], step, SCALE) for i in range(launches)]
        graph = stream.end_capture()
        graph.launch(stream)
        spent = median_of(lambda: graph.launch(stream), launches, args.repeat, stream)
    del kept
    return spent


def time_torch(backend: str, cells: int, heads: tuple[int, int], args: argparse.Namespace) -> float:
    """Microseconds a launch of PyTorch's; NaN where it isn't to be had."""
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return float("nan")
    num_heads, kv_heads = heads
    layers, launches = rounds(cells, kv_heads)
    kind = {"device": "cuda", "dtype": getattr(torch, args.dtype)}
    q = torch.randn(1, num_heads, args.queries, HEAD_DIM, **kind)
    pools = [torch.randn(2, 1, kv_heads, cells, HEAD_DIM, **kind) for _ in range(layers)]

    def call(i: int) -> Any:
        k, v = pools[i % layers]
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, scale=SCALE, enable_gqa=True
        )

    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    try:
        with sdpa_kernel(getattr(SDPBackend, backend)), torch.cuda.stream(side):
            call(0)
            side.synchronize()
            with torch.cuda.graph(graph, stream=side):
                kept = [call(i) for i in range(launches)]
            graph.replay()
            stream = cp.cuda.ExternalStream(side.cuda_stream)
            spent = median_of(graph.replay, launches, args.repeat, stream)
    except RuntimeError:  # the backend refuses these shapes
        return float("nan")
    del kept
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=1)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bfloat16")
    parser.add_argument("--repeat", type=int, default=20)
    args = parser.parse_args()
    attention = DecodeAttention(Compiler(), cp.cuda.Device().attributes["MultiProcessorCount"])
    print(f"{args.dtype}, {args.queries} queries; us (TB/s): ours, FA2, cuDNN")
    for heads in HEADS:
        for cells in CELLS:
            rng = np.random.default_rng(0)
            slots = scattered(cells, 3 * cells // (2 * PAGE_SIZE) + 1, rng)
            size = cells * heads[1] * HEAD_DIM * 4
            columns = [
                time_ours(attention, slots, heads, args),
                time_torch("FLASH_ATTENTION", cells, heads, args),
                time_torch("CUDNN_ATTENTION", cells, heads, args),
            ]
            text = "  ".join(f"{us:7.2f} ({size / us / 1e6:4.2f})" for us in columns)
            print(f"{heads[0]}q/{heads[1]}kv {cells:6d}  {text}", flush=True)
    for cells in (2_816, 65_536):
        slots = dense(cells), dense(cells // 2), alternate(cells // 2)
        whole, half, every_other = (time_ours(attention, x, (28, 4), args) for x in slots)
        print(
            f"28q/4kv, {cells} slots: all live {whole:.2f} us; half of the tiles dead, compacted "
            f"{half:.2f}, every other {every_other:.2f}"
        )


if __name__ == "__main__":
    main()
