"""What the Metal shaders should take on five machines, from bytes, operations and registers.

    python benchmarks/metal_count.py

Nothing is measured, and no Mac is needed. The tables of docs/performance.md are what this prints.
Bytes of attention are those that tests/metal_cpu/test_attention_traffic.py asserts.
"""

from __future__ import annotations

from dataclasses import dataclass

from omnitide.backends.mlx.paged import LARGER, LEAST_TILES, THREADGROUPS, THREADS
from omnitide.bench.room import kv_bytes, weight_bytes
from omnitide.bench.shapes import make_shape
from omnitide.models.qwen2_5_omni.config import TextConfig
from omnitide.pages import SUBBLOCK_SIZE

CELLS = 2_816
QUERIES = 512
ITEM = 2
"""Bytes of a key's or value's element: 16 bits."""

LATENCY = 1e-6
"""Seconds from asking memory under load to having it; assumed."""

REGISTER_FILE = 208 * 1024
"""Bytes of registers a core, given out to 64 threads at a time: what the open driver for the M1
(Mesa, asahi/compiler/agx_performance.c) takes it to be. Newer chips are assumed to have as many."""

THREADGROUP_MEMORY = 60
"""KiB a core, as others have measured on the M1; a threadgroup may have 32."""


@dataclass(frozen=True)
class Machine:
    """A GPU: 10^9 bytes a second, cores, clock (GHz), last letter of Metal's architecture."""

    name: str
    bandwidth: float
    cores: int
    clock: float
    letter: str

    @property
    def tflops(self) -> float:
        """Peak in float32: 128 multiply-adds a core and clock."""
        return self.cores * 256 * self.clock / 1e3

    @property
    def wanted(self) -> int:
        """Threadgroups that a launch is cut into, if there are tiles enough."""
        return THREADGROUPS * LARGER.get(self.letter, 1)


# Clocks of M4 and M5 are rounded guesses.
MACHINES = (
    Machine("M1", 68, 8, 1.3, "g"),
    Machine("M2 Pro", 200, 19, 1.4, "g"),
    Machine("M4", 120, 10, 1.5, "g"),
    Machine("M4 Max", 546, 40, 1.5, "s"),
    Machine("M5", 153, 10, 1.6, "g"),
)


@dataclass(frozen=True)
class Launch:
    """A kernel at head size 128 in 16 bits: registers, and threadgroup memory in KiB, by hand."""

    name: str
    registers: int
    memory: float

    @property
    def by_registers(self) -> int:
        """Threadgroups that a core's registers hold."""
        return REGISTER_FILE // (4 * self.registers) // 64 * 64 // THREADS

    @property
    def by_memory(self) -> int:
        """Threadgroups that a core's threadgroup memory holds."""
        return int(THREADGROUP_MEMORY / self.memory)

    @property
    def resident(self) -> int:
        """Threadgroups that a core holds."""
        return min(self.by_registers, self.by_memory)


def decode(rows: int, head_dim: int = 128) -> Launch:
    """Registers: 4 sums and a score a row, and some 32. Memory: the shader's four arrays."""
    space = max(rows * head_dim + 4 * SUBBLOCK_SIZE * (rows | 1), 2 * rows * head_dim)
    words = space + 4 * rows * 2 + rows + 4 * SUBBLOCK_SIZE
    return Launch(f"decode, {rows} rows", 5 * rows + 32, 4 * words / 1024)


# Sums 32, queries 16, scores 16, and some 16.
PREFILL = Launch("prefill", 80, 8)


def parts_of(machine: Machine, kv_heads: int) -> int:
    """Parts of a decode launch."""
    tiles = -(-CELLS // SUBBLOCK_SIZE)
    return max(min(-(-machine.wanted // kv_heads), tiles // LEAST_TILES), 1)


def decode_bytes(text: TextConfig, cells: int, parts: int) -> dict[str, int]:
    """Bytes of one layer's attention of one token, by what they are."""
    head_dim, rows = text.head_dim, text.num_heads
    return {
        "keys and values": cells * kv_bytes(text, ITEM, 1),
        "angles": cells * (4 * head_dim + 8),
        "parts": 2 * parts * rows * 4 * (head_dim + 2),
    }


def decode_operations(text: TextConfig, cells: int, queries: int = 1) -> int:
    """Operations of scores, values and turning of one layer, a multiply-add as two."""
    rows = queries * text.num_heads
    return cells * text.head_dim * 4 * (rows + text.num_kv_heads)


def row(*columns: object) -> None:
    """A line of a table."""
    print("| " + " | ".join(str(column) for column in columns) + " |")


def head(*columns: str) -> None:
    """A table's first lines."""
    print()
    row(*columns)
    row(*("---" for _ in columns))


def times(text: TextConfig) -> None:
    """Least times of a layer's decoding, beside others', and of a prefill's operations."""
    head("machine", "GB/s", "TFLOP/s", "threadgroups", "shader, us", "its operations",
         "MLX's own, dense", "plain operations", "llama.cpp", "shader, ms a token",
         f"{QUERIES} tokens, ms a layer")  # fmt: skip
    dense = CELLS * kv_bytes(text, ITEM, 1)
    group = text.num_heads // text.num_kv_heads
    for m in MACHINES:
        parts = parts_of(m, text.num_kv_heads)
        ours = sum(decode_bytes(text, CELLS, parts).values())
        us, least, plain, most = (
            n / m.bandwidth / 1e3 for n in (ours, dense, 4 * dense, group * dense)
        )
        operations = decode_operations(text, CELLS) / m.tflops / 1e6
        prefill = decode_operations(text, CELLS + QUERIES // 2, QUERIES) / m.tflops / 1e9
        row(m.name, f"{m.bandwidth:g}", f"{m.tflops:.1f}", parts * text.num_kv_heads, f"{us:.0f}",
            f"{operations:.0f}", f"{least:.0f}", f"{plain:.0f}", f"{least:.0f} to {most:.0f}",
            f"{us * text.num_layers / 1e3:.1f}", f"{prefill:.1f}")  # fmt: skip


def occupancy() -> None:
    """How many threadgroups a core holds."""
    head("launch, head size 128, 16 bits", "registers a thread", "threadgroups by registers",
         "memory, KiB", "by memory", "held", "on an M1", "on an M4 Max")  # fmt: skip
    cores = {m.name: m.cores for m in MACHINES}
    for launch in (decode(7), decode(8), decode(14), decode(16), PREFILL):
        held = launch.resident
        row(launch.name, launch.registers, launch.by_registers, f"{launch.memory:.1f}",
            launch.by_memory, held, held * cores["M1"], held * cores["M4 Max"])  # fmt: skip


def in_flight() -> None:
    """Bytes that a launch asks memory for at once, beside what keeps memory busy."""
    key = THREADS * (2 * 4 * ITEM + 2 * 4 * 4)
    value = THREADS * 4 * 4 * ITEM
    head("machine", "needed, KB", "threadgroups", "asked while keys are read, KB",
         "while values are", "part of the bytes that parts are")  # fmt: skip
    text = make_shape("qwen2.5-omni-7b").text
    for m in MACHINES:
        parts = parts_of(m, text.num_kv_heads)
        groups, found = parts * text.num_kv_heads, decode_bytes(text, CELLS, parts)
        row(m.name, f"{m.bandwidth * LATENCY * 1e6:.0f}", groups, f"{groups * key / 1e3:.0f}",
            f"{groups * value / 1e3:.0f}",
            f"{found['parts'] / sum(found.values()):.0%}")  # fmt: skip


def crossover(text: TextConfig) -> None:
    """Decode and prefill at few rows: a layer's bytes and operations, in us on an M1."""
    head("rows of a KV head", "decode: launches", "bytes, us", "operations, us",
         "prefill: bytes, us", "operations, us")  # fmt: skip
    m, heads, head_dim = MACHINES[0], text.num_kv_heads, text.head_dim
    for rows in (7, 16, 17, 32, 33, 64):
        launches, blocks = -(-rows // 16), -(-rows // 32)
        each = CELLS * (kv_bytes(text, ITEM, 1) + 4 * head_dim + 8)
        operations = CELLS * head_dim * 4 * heads * (rows + launches)
        # Keys are read, written turned, and read again, values read; a second block finds them
        # in the cache.
        turned = CELLS * (4 * heads * head_dim * ITEM + 4 * head_dim)
        matrices = CELLS * head_dim * 4 * heads * 32 * blocks
        us = m.bandwidth * 1e3
        row(rows, launches, f"{launches * each / us:.0f}", f"{operations / m.tflops / 1e6:.0f}",
            f"{turned / us:.0f}", f"{matrices / m.tflops / 1e6:.0f}")  # fmt: skip


def turned_copy() -> None:
    """Reading angles at each token beside keeping turned keys."""
    head("machine, model in 16 bits", "cells", "a token: weights, K, V, ms", "angles, ms", "share",
         "copy, MB", "turning anew after an eviction, ms")  # fmt: skip
    for machine, name in ((MACHINES[0], "3b"), (MACHINES[3], "7b")):
        text = make_shape(f"qwen2.5-omni-{name}").text
        for cells in (CELLS, 32_768):
            ms = machine.bandwidth * 1e6
            kept = cells * kv_bytes(text, ITEM)
            token = (weight_bytes(text, ITEM) + kept) / ms
            angles = cells * 4 * text.head_dim * text.num_layers
            row(f"{machine.name}, {name.upper()}", f"{cells:,}", f"{token:.1f}",
                f"{angles / ms:.2f}", f"{angles / ms / token:.1%}", f"{kept / 2 / 1e6:.0f}",
                f"{(kept + angles) / ms:.1f}")  # fmt: skip


def main() -> None:
    """Print all tables."""
    text = make_shape("qwen2.5-omni-7b").text
    times(text)
    occupancy()
    in_flight()
    crossover(text)
    turned_copy()


if __name__ == "__main__":
    main()
