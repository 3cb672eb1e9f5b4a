"""How fast a decoded token's weights go through the CUDA backend's matrix-vector kernels.

    python benchmarks/cuda_matvec.py [--shape qwen-7b|qwen-3b|minicpm-o] [--dtype bfloat16] [--peer]

Each product of all layers in one recorded graph (every layer its own random weights, so that no
cache holds them), then the whole token: per layer projections, output, gated and down, at the end
the logits, without attention. Launches one after the other, and overlapping. Medians by the
device's events; terabytes a second count the weights alone. `--peer` times PyTorch's `linear` on
the same weights, joined where one launch of ours multiplies by several.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import cupy as cp
import numpy as np

from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.matvec import MatVec

EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    """Sizes of a model."""

    layers: int
    hidden: int
    queries: int
    keys: int
    inner: int
    vocabulary: int


SHAPES = {
    "qwen-7b": Shape(28, 3584, 3584, 512, 18944, 152064),
    "qwen-3b": Shape(36, 2048, 2048, 256, 11008, 151936),
    "minicpm-o": Shape(36, 4096, 4096, 1024, 12288, 151748),
}


class Model:
    """Random weights and the products of a token."""

    def __init__(self, shape: Shape, dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype
        hidden, inner = shape.hidden, shape.inner
        heights = (shape.queries, shape.keys, shape.keys)
        self.project = [
            [(self.random(height, hidden), self.random(1, height)[0]) for height in heights]
            for _ in range(shape.layers)
        ]
        self.output = [self.random(hidden, shape.queries) for _ in range(shape.layers)]
        self.gate = [self.random(inner, hidden) for _ in range(shape.layers)]
        self.up = [self.random(inner, hidden) for _ in range(shape.layers)]
        self.down = [self.random(hidden, inner) for _ in range(shape.layers)]
        self.head = self.random(shape.vocabulary, hidden)
        self.norm = self.random(1, hidden, scale=1.0)[0]
        self.x = self.random(1, hidden, scale=1.0)
        self.wide = self.random(1, inner, scale=1.0)

    def random(self, rows: int, columns: int, scale: float | None = None) -> Any:
        """Normal numbers, by default as large as keeps a product's size."""
        values = cp.random.standard_normal((rows, columns), dtype=np.float32)
        values *= columns**-0.5 if scale is None else scale
        return values.astype(self.dtype)

    def products(self, matvec: MatVec) -> dict[str, tuple[list[Any], Callable[[], Any]]]:
        """Of each kind: the weights, and all its launches."""
        x, norm, layers = self.x, self.norm, range(self.shape.layers)
        joined = [[weight for weight, _ in pairs] for pairs in self.project]
        return {
            "projections": (
                joined,
                lambda: [matvec.project(x, norm, EPS, pairs) for pairs in self.project],
            ),
            "output": (
                [[weight] for weight in self.output],
                lambda: [matvec.linear(x, weight, None, x) for weight in self.output],
            ),
            "gated": (
                [list(pair) for pair in zip(self.gate, self.up, strict=True)],
                lambda: [
                    matvec.gated(x, norm, EPS, self.gate[i], None, self.up[i], None) for i in layers
                ],
            ),
            "down": (
                [[weight] for weight in self.down],
                lambda: [matvec.linear(self.wide, weight, None, x) for weight in self.down],
            ),
            "logits": (
                [[self.head]] * 4,
                lambda: [matvec.project(x, norm, EPS, [(self.head, None)]) for _ in range(4)],
            ),
        }

    def token(self, matvec: MatVec) -> Any:
        """All launches of a token; the queries stand for what attention gives."""
        x = self.x
        for i, pairs in enumerate(self.project):
            queries, _, _ = matvec.project(x, self.norm, EPS, pairs)
            x = matvec.linear(queries, self.output[i], None, x)
            inner = matvec.gated(x, self.norm, EPS, self.gate[i], None, self.up[i], None)
            x = matvec.linear(inner, self.down[i], None, x)
        return matvec.project(x, self.norm, EPS, [(self.head, None)])


def microseconds(launch: Callable[[], Any], repeat: int = 11) -> float:
    """Median time of a recorded call."""
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
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


def peer_microseconds(weights: list[list[Any]], repeat: int = 11) -> float:
    """The same products by PyTorch."""
    import torch

    matrices = [torch.cat([torch.from_dlpack(part) for part in parts]) for parts in weights]
    x = torch.randn(1, matrices[0].shape[1], device="cuda").to(matrices[0].dtype)
    for matrix in matrices:
        torch.nn.functional.linear(x, matrix)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [torch.nn.functional.linear(x, matrix) for matrix in matrices]
    times = []
    for _ in range(repeat):
        start, stop = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3)
    del kept
    return median(times[1:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=tuple(SHAPES), default="qwen-7b")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--peer", action="store_true")
    options = parser.parse_args()
    model = Model(SHAPES[options.shape], cp.dtype(options.dtype))
    compiler = Compiler()
    multiprocessors = cp.cuda.Device().attributes["MultiProcessorCount"]
    ways = {
        "in turn": MatVec(compiler, multiprocessors),
        "overlapping": MatVec(compiler, multiprocessors, overlap=True),
    }
    total = 0
    for name, (weights, _) in model.products(ways["in turn"]).items():
        size = sum(part.nbytes for parts in weights for part in parts)
        times = {way: microseconds(model.products(matvec)[name][1]) for way, matvec in ways.items()}
        if options.peer:
            times["torch"] = peer_microseconds(weights)
        report(name, size, len(weights), times)
        total += model.head.nbytes if name == "logits" else size
    times = {way: microseconds(lambda m=matvec: model.token(m)) for way, matvec in ways.items()}
    report("token", total, 1, times)


def report(name: str, size: int, calls: int, times: dict[str, float]) -> None:
    """A line: of each way a call's time and the weights' bytes a second."""
    cells = (
        f"{way} {time / calls:8.2f} us {size / time / 1e6:5.2f} TB/s" for way, time in times.items()
    )
    print(f"{name:<12}", "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
