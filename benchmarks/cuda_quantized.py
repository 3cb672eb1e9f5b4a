"""How fast the CUDA backend multiplies by quantised weights.

    python benchmarks/cuda_quantized.py [--shape qwen-7b|qwen-3b|minicpm-o] [--bits 4|8]
        [--group 32|64|128] [--dtype bfloat16] [--rows 1 8 64 512] [--products gated down]
        [--rings 16,256,2 8,512,2+8,256,2] [--in-turn] [--peer]

Each product of several layers in one recorded graph (every layer its own random weights, so that no
cache holds them), by every way that takes so many rows: the matrix-vector kernel with the ring
that the backend takes, or once for each of `--rings` (the fields of `Ring`; of rings joined by +
the first that fits), the tensor-core kernel once for each size of its blocks, dequantising and
cuBLAS, and cuBLAS with 16-bit weights. With one row, the products of a whole token too. Launches of
the former overlap, or are made one after the other. Medians by the device's events; terabytes a
second count the quantised weights alone, and are compared with what a copy reaches. `--peer` times
PyTorch's product of 4-bit weights, which are rearranged for it beforehand.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple
from statistics import median
from typing import Any

import cupy as cp
import numpy as np
from quantized_peer import peer_microseconds
from quantized_shapes import SHAPES

from omnitide.backends.cuda.arrays import copy_into
from omnitide.backends.cuda.blas import Blas
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.dequantize import Dequantize
from omnitide.backends.cuda.quantized_matmul import TOKENS, QuantizedMatMul
from omnitide.backends.cuda.quantized_matvec import QuantizedMatVec, Ring
from omnitide.quantized import QuantizedWeight

EPS = 1e-6
LAYERS = 8  # of which products are timed
Pairs = list[tuple[QuantizedWeight, Any]]


def random_weight(height: int, width: int, bits: int, group: int, dtype: Any) -> QuantizedWeight:
    """Random codes; scales and biases that keep a product's size."""
    codes = cp.random.randint(0, 256, (height, width * bits // 8), dtype=cp.uint8)
    scale = 2 * width**-0.5 / (1 << bits)
    noise = cp.random.uniform(0.5, 1.5, (height, width // group), dtype=cp.float32)
    scales = (scale * noise).astype(dtype)
    biases = (-scale * noise * ((1 << bits) - 1) / 2).astype(dtype)
    return QuantizedWeight(codes.view(cp.uint32), scales, biases, bits, group, "affine")


def random_rows(rows: int, columns: int, dtype: Any) -> Any:
    """Normal numbers."""
    return cp.random.standard_normal((rows, columns), dtype=np.float32).astype(dtype)


def microseconds(launch: Callable[[], Any], repeat: int = 9) -> float:
    """Median time of a recorded call on the current stream."""
    stream = cp.cuda.get_current_stream()
    kept = [launch()]  # what the graph writes stays allocated
    stream.begin_capture()
    kept.append(launch())
    graph = stream.end_capture()
    times = []
    for _ in range(repeat):
        start, stop = cp.cuda.Event(), cp.cuda.Event()
        start.record(stream)
        graph.launch(stream)
        stop.record(stream)
        stop.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, stop) * 1e3)
    return median(times[1:])


def copy_bandwidth() -> float:
    """Terabytes a second of a large copy by the copy engine, read and written, at best."""
    source, stream = cp.zeros(1 << 29, cp.uint8), cp.cuda.get_current_stream()
    target, times = cp.empty_like(source), []
    for _ in range(6):
        start, stop = cp.cuda.Event(), cp.cuda.Event()
        start.record(stream)
        copy_into(target, source)
        stop.record(stream)
        stop.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, stop) * 1e3)
    return 2 * source.nbytes / min(times[1:]) / 1e6


class Bench:
    """The kernels, and all ways to multiply."""

    def __init__(
        self, rings: Iterable[list[Ring] | None], most: Iterable[int], overlap: bool
    ) -> None:
        compiler = Compiler()
        count = cp.cuda.Device().attributes["MultiProcessorCount"]
        self.vectors = {
            _named(choice): QuantizedMatVec(compiler, count, choice) for choice in rings
        }
        self.matmuls = {size: QuantizedMatMul(compiler, count, size) for size in most}
        self.dequantize = Dequantize(compiler)
        self.blas, self.overlap = Blas(), overlap

    def ways(
        self, name: str, layers: list[Pairs], x: Any, norm: Any
    ) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Name and call of each way to do a product for all layers."""
        rows, weight = len(x), layers[0][0][0]
        gated = name == "gated"
        normed = (norm, EPS) if name in ("projections", "gated", "logits") else None
        residual = None if normed else random_rows(rows, weight.shape[0], x.dtype)
        for way, vector in self.vectors.items():
            if vector.takes(rows, weight, normed is not None, gated):
                yield (
                    way,
                    lambda v=vector: [
                        v.multiply(x, pairs, normed, residual, gated, self.overlap)
                        for pairs in layers
                    ],
                )
        for size, matmul in self.matmuls.items():
            if rows > 4 and size / 4 < rows <= 1024:
                yield (
                    f"matmul {size}",
                    lambda m=matmul: [m.multiply(x, pairs, residual) for pairs in layers],
                )
        if rows > 16:
            yield "dequantise, cuBLAS", lambda: [self.by_blas(x, p) for p in layers]
            dense = [
                [self.dequantize.part(w, x.dtype, 0, w.shape[0]) for w, _ in pairs]
                for pairs in layers
            ]
            yield (
                "cuBLAS, 16 bits",
                lambda: [[self.blas.product(x, w) for w in ws] for ws in dense],
            )
        if rows == 1 and name != "logits":
            yield "dequantise alone", lambda: [self.whole(pairs) for pairs in layers]

    def whole(self, pairs: Pairs) -> None:
        """The values of all matrices."""
        for weight, _ in pairs:
            self.dequantize.part(weight, weight.scales.dtype, 0, weight.shape[0])

    def by_blas(self, x: Any, pairs: Pairs) -> list[Any]:
        """As the backend multiplies many rows."""
        return [
            self.blas.product(x, self.dequantize.part(weight, x.dtype, 0, weight.shape[0]))
            for weight, _ in pairs
        ]

    def token(
        self, vector: QuantizedMatVec, made: dict[str, list[Pairs]], x: Any, norm: Any
    ) -> Any:
        """All products of a token; the queries stand for what attention gives."""
        for project, output, gated, down in zip(
            *(made[name] for name in ("projections", "output", "gated", "down")), strict=True
        ):
            queries = vector.multiply(x, project, (norm, EPS), overlap=self.overlap)[0]
            x = vector.multiply(queries, output, residual=x, overlap=self.overlap)[0]
            inner = vector.multiply(x, gated, (norm, EPS), gated=True, overlap=self.overlap)[0]
            x = vector.multiply(inner, down, residual=x, overlap=self.overlap)[0]
        return vector.multiply(x, made["logits"][0], (norm, EPS), overlap=self.overlap)


def _named(rings: list[Ring] | None) -> str:
    """What a line of the report calls the kernel with these rings."""
    if rings is None:
        return "matvec"
    return "matvec " + "+".join(",".join(str(field) for field in astuple(ring)) for ring in rings)


def parse_rings(text: str) -> list[Ring]:
    """The fields of `Ring`; the first that fits of those joined by +."""
    return [Ring(*(int(part) for part in ring.split(","))) for ring in text.split("+")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=tuple(SHAPES), default="qwen-7b")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4)
    parser.add_argument("--group", type=int, choices=(32, 64, 128), default=64)
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--products", nargs="+", default=None)
    parser.add_argument("--rings", type=parse_rings, nargs="+")
    parser.add_argument("--blocks", type=int, nargs="+", choices=TOKENS, default=TOKENS)
    parser.add_argument("--in-turn", action="store_true", help="launches don't overlap")
    parser.add_argument("--peer", action="store_true")
    options = parser.parse_args()
    cp.cuda.Stream(non_blocking=True).use()
    shape, dtype = SHAPES[options.shape], cp.dtype(options.dtype)
    rings = options.rings or [None]
    bench, ceiling = Bench(rings, options.blocks, not options.in_turn), copy_bandwidth()
    print(f"copy {ceiling:.2f} TB/s", flush=True)

    def make(heights: tuple[int, ...], width: int, layers: int) -> list[Pairs]:
        return [
            [(random_weight(h, width, options.bits, options.group, dtype), None) for h in heights]
            for _ in range(layers)
        ]

    products = shape.products()
    for name in options.products or products:
        heights, width = products[name]
        layers = make(heights, width, 2 if name == "logits" else LAYERS)
        size = sum(weight.nbytes for weight, _ in layers[0])
        norm = random_rows(1, width, dtype)[0]
        for rows in options.rows:
            if name == "logits" and rows > 1:
                continue
            x = random_rows(rows, width, dtype)
            times = {w: microseconds(call) for w, call in bench.ways(name, layers, x, norm)}
            if options.peer and options.bits == 4 and options.dtype == "bfloat16":
                times["PyTorch, int4"] = peer_microseconds(layers, x)
            for way, time in times.items():
                report(name, rows, way, time / len(layers), size, ceiling)
        del layers
    if 1 in options.rows and options.products is None:
        made = {
            name: make(heights, width, 1 if name == "logits" else shape.layers)
            for name, (heights, width) in products.items()
        }
        x, norm = random_rows(1, shape.hidden, dtype), random_rows(1, shape.hidden, dtype)[0]
        size = sum(w.nbytes for layers in made.values() for pairs in layers for w, _ in pairs)
        for way, vector in bench.vectors.items():
            if not all(vector.takes(1, layers[0][0][0], True, True) for layers in made.values()):
                continue
            time = microseconds(lambda v=vector: bench.token(v, made, x, norm))
            report("token", 1, way, time, size, ceiling)


def report(name: str, rows: int, way: str, time: float, size: int, ceiling: float) -> None:
    """A line: time, and the weights' bytes a second."""
    rate = size / time / 1e6
    print(
        f"{name:<12}{rows:>5}  {way:<20}{time:>9.2f} us {rate:>6.2f} TB/s {rate / ceiling:>5.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
