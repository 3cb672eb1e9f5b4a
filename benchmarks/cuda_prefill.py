"""Prefill attention on a CUDA GPU: a kernel of ours beside PyTorch's.

    python benchmarks/cuda_prefill.py [--kernel hopper|mma] [--dtype bfloat16] [--group all]
        [--no-peers]

Random data; the pools of as many layers as pass the L2 are used in turn; launches are recorded in
one CUDA graph, and the median of its replays counts. At stride 2 every second subblock of the
history is dead; the case before has the same cells side by side.
FLOPs = 4 x head_dim x heads x (queries x history + queries^2 / 2), causal. FA2 sees the causal
mask; cuDNN's backend takes no lower-right mask through PyTorch and gets history + queries / 2 cells
without one, the same FLOPs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import cupy as cp
import ml_dtypes  # noqa: F401  gives NumPy the name bfloat16
import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.device import find_device
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.backends.cuda.prefill import PrefillAttention
from omnitide.backends.cuda.prefill_hopper import HopperPrefill
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE
from omnitide.rotary import Rotary
from omnitide.step import Step

PAST_L2 = 200 << 20
LAUNCHES = 20
REPLAYS = 15


@dataclass(frozen=True)
class Case:
    """One shape. `stride` 2: only every second subblock of the history is live."""

    queries: int
    history: int
    heads: int = 28
    kv_heads: int = 4
    head_dim: int = 128
    stride: int = 1

    @property
    def flops(self) -> float:
        return 4.0 * self.head_dim * self.heads * self.queries * (self.history + self.queries / 2)

    @property
    def cells(self) -> int:
        return self.history + self.queries

    @property
    def num_pages(self) -> int:
        return -(-self.history * self.stride // PAGE_SIZE) + -(-self.queries // PAGE_SIZE)


GROUPS = {
    "qwen7b": [Case(n, c) for n in (512, 2304) for c in (2048, 2816, 8192, 32768)],
    "others": [
        Case(512, c, heads, kv) for heads, kv in ((32, 8), (16, 2)) for c in (2048, 8192, 32768)
    ],
    "ragged": [Case(n, 2816) for n in (17, 130, 700)],
    "dead": [Case(512, 8192), Case(512, 4096), Case(512, 4096, stride=2)],
    "d64": [Case(n, 2816, 28, 4, 64) for n in (512, 2304)],
}


def make_step(case: Case) -> Step:
    """Queries after a history, in pages of their own."""
    subblocks = np.arange(-(-case.history // SUBBLOCK_SIZE)) * case.stride
    slots = (subblocks[:, None] * SUBBLOCK_SIZE + np.arange(SUBBLOCK_SIZE)).reshape(-1)
    start = (case.num_pages - -(-case.queries // PAGE_SIZE)) * PAGE_SIZE
    slots = np.concatenate([slots[: case.history], start + np.arange(case.queries)])
    orders = np.arange(case.cells, dtype=np.int32)
    positions = np.repeat(orders[:, None], 3, axis=1)
    cos, sin = Rotary(case.head_dim).tables(positions)
    new = slice(case.history, None)
    slots = slots.astype(np.int32)
    return Step(slots, orders, cos, sin, slots[new], orders[new], cos[new], sin[new])


def random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


def as_cupy(tensor: torch.Tensor, dtype: str) -> Any:
    """The same memory as a CuPy array."""
    return cp.from_dlpack(tensor.view(torch.int16)).view(cp.dtype(dtype))


def ours(case: Case, kernel: Any, dtype: str) -> float:
    """Microseconds of one layer."""
    shape = (case.num_pages, case.kv_heads, PAGE_SIZE, case.head_dim)
    torch_dtype = getattr(torch, dtype)
    layers = 2 + PAST_L2 // (4 * int(np.prod(shape)))
    tensors = [[random(shape, torch_dtype) for _ in range(2)] for _ in range(layers)]
    pools = [[as_cupy(x, dtype) for x in pair] for pair in tensors]
    q_tensor = random((case.queries, case.heads, case.head_dim), torch_dtype)
    q = as_cupy(q_tensor, dtype)
    step = DeviceStep.of(make_step(case))
    stream = cp.cuda.Stream(non_blocking=True)
    scale = case.head_dim**-0.5

    def launch_all() -> None:
        for i in range(LAUNCHES):
            kernel(q, *pools[i % layers], step, scale)

    torch.cuda.synchronize()
    cp.cuda.Device().synchronize()
    with stream:
        launch_all()
        stream.begin_capture()
        launch_all()
        graph = stream.end_capture()

        def replay() -> None:
            graph.launch(stream)

        times = []
        for _ in range(REPLAYS):
            begin, end = cp.cuda.Event(), cp.cuda.Event()
            begin.record(stream)
            replay()
            end.record(stream)
            end.synchronize()
            times.append(cp.cuda.get_elapsed_time(begin, end) * 1000 / LAUNCHES)
    return median(times)


@contextmanager
def backend(name: str) -> Iterator[None]:
    which = {"FA2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}[name]
    with sdpa_kernel([which]):
        yield


def peer(case: Case, name: str, dtype: str) -> float:
    """Microseconds of PyTorch's scaled_dot_product_attention over contiguous cells."""
    cells = case.cells if name == "FA2" else case.history + case.queries // 2
    torch_dtype = getattr(torch, dtype)
    shape = (1, case.kv_heads, cells, case.head_dim)
    layers = 2 + PAST_L2 // (4 * int(np.prod(shape)))
    pools = [[random(shape, torch_dtype) for _ in range(2)] for _ in range(layers)]
    q = random((1, case.heads, case.queries, case.head_dim), torch_dtype)
    mask = causal_lower_right(case.queries, cells) if name == "FA2" else None

    def launch_all() -> None:
        for i in range(LAUNCHES):
            scaled_dot_product_attention(q, *pools[i % layers], attn_mask=mask, enable_gqa=True)

    with backend(name):
        return graph_time(launch_all)


def graph_time(launch_all: Callable[[], None]) -> float:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        launch_all()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch_all()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / LAUNCHES)
    return median(times)


def load(name: str) -> Any:
    """The kernel of that name, made for this device."""
    device = find_device()
    if isinstance(device, str):
        raise SystemExit(device)
    if name == "hopper":
        return HopperPrefill(Compiler(), device.multiprocessors)
    return PrefillAttention(Compiler(), device.shared_memory, device.multiprocessors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kernel", default="hopper", choices=("hopper", "mma"))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--group", default="all", choices=("all", *GROUPS))
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    kernel = load(options.kernel)
    peers = () if options.no_peers else ("FA2", "cuDNN")
    print("queries history heads kv head_dim stride: microseconds (TFLOP/s)")
    for group in GROUPS if options.group == "all" else (options.group,):
        for case in GROUPS[group]:
            found = {"ours": ours(case, kernel, options.dtype)}
            found |= {name: peer(case, name, options.dtype) for name in peers}
            shape = f"{case.queries:5} {case.history:6} {case.heads:3} {case.kv_heads:2}"
            figures = ", ".join(
                f"{k} {v:.1f} ({case.flops / v / 1e6:.0f})" for k, v in found.items()
            )
            print(f"{shape} {case.head_dim:4} {case.stride}: {figures}", flush=True)


if __name__ == "__main__":
    main()
