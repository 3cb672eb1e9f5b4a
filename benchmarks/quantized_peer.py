"""PyTorch's product of 4-bit weights, timed as `cuda_quantized.py` times ours."""

from __future__ import annotations

from statistics import median
from typing import Any

import cupy as cp

from omnitide.quantized import QuantizedWeight

Pairs = list[tuple[QuantizedWeight, Any]]


def peer_microseconds(layers: list[Pairs], x: Any) -> float:
    """PyTorch's product of 4-bit weights, of the same sizes and other values."""
    import torch

    weight, stream = layers[0][0][0], torch.cuda.ExternalStream(cp.cuda.get_current_stream().ptr)
    height, width = sum(w.shape[0] for w, _ in layers[0]), weight.shape[1]
    with torch.cuda.stream(stream):
        rows = torch.from_dlpack(x)
        packed, scales = [], []
        for _ in layers:
            codes = torch.randint(0, 256, (height, width // 2), dtype=torch.uint8, device="cuda")
            packed.append(torch.ops.aten._convert_weight_to_int4pack(codes, 8))
            size = (width // weight.group_size, height, 2)
            scales.append(torch.rand(size, dtype=torch.bfloat16, device="cuda") * 0.01)
        group = weight.group_size

        def launch() -> list[Any]:
            return [
                torch.ops.aten._weight_int4pack_mm(rows, p, group, s)
                for p, s in zip(packed, scales, strict=True)
            ]

        launch()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kept = launch()
        times = []
        for _ in range(9):
            start, stop = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record(stream)
            graph.replay()
            stop.record(stream)
            torch.cuda.synchronize()
            times.append(start.elapsed_time(stop) * 1e3)
        del kept
    return median(times[1:])
