"""Each shader with one fault planted in its text: the harness stops it, or its result is wrong.

A table of faults. A text that no longer occurs, or occurs twice, fails its test, so that the table
follows the shaders. What is right is computed here in NumPy, cell by cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from metal_cpu_harness.errors import MetalError
from numpy.typing import NDArray

from omnitide.backends.mlx import shaders
from omnitide.backends.mlx.paged import PagedAttention, TileArrays
from omnitide.backends.mlx.write_through import WriteThrough, WriteThroughPools
from omnitide.pages import PAGE_SIZE
from omnitide.step import Step

KV_HEADS, PAGES = 2, 5
CELLS = 170
DIFFERS = "differs"
OUTSIDE = "out of bounds"
RACE = "race: "


@dataclass(frozen=True)
class Scene:
    """Attention of some queries: the newest cell, inner ones, and the first sees nothing."""

    group: int
    queries: int
    head_dim: int


DECODE = Scene(4, 3, 80)  # 12 rows; the second round over the pairs of a key is not whole
DECODE_64 = Scene(4, 3, 64)  # two values at a time
PREFILL = Scene(3, 13, 64)  # 39 rows: two row blocks, the second not whole


@dataclass(frozen=True)
class Mutant:
    """A text of a shader's file, what stands in its place, and how that is found (a pattern)."""

    scene: Scene | None
    file: str
    old: str
    new: str
    found: str


TO_SIMDGROUP = "simdgroup_barrier(mem_flags::mem_threadgroup);"
TO_THREADGROUP = "threadgroup_barrier(mem_flags::mem_threadgroup);"


def in_decode(old: str, new: str, found: str = DIFFERS, scene: Scene = DECODE) -> Mutant:
    return Mutant(scene, "decode_attention", old, new, found)


def in_prefill(old: str, new: str, found: str = DIFFERS) -> Mutant:
    return Mutant(PREFILL, "prefill_attention", old, new, found)


def in_rotate(old: str, new: str, found: str = DIFFERS) -> Mutant:
    return Mutant(PREFILL, "rotate", old, new, found)


def in_append(old: str, new: str, found: str = DIFFERS) -> Mutant:
    return Mutant(None, "append", old, new, found)


def in_migrate(old: str, new: str, found: str = DIFFERS) -> Mutant:
    return Mutant(None, "migrate", old, new, found)


def no_barrier(before: str, barrier: str, after: str) -> tuple[str, str, str]:
    """The text with the barrier, without it, and that this is a race."""
    return before + barrier + after, before + after, RACE


DECODE_MUTANTS = {
    "no barrier after the queries": in_decode(
        *no_barrier("query_orders[query];\n  }\n  ", TO_THREADGROUP, "")
    ),
    "no barrier after the list": in_decode(  # what is not listed yet is no row
        f"= lane;\n    {TO_SIMDGROUP}", "= lane;", f"{RACE}|{OUTSIDE}"
    ),
    "no barrier after the scores": in_decode(
        *no_barrier("", TO_SIMDGROUP, "\n\n    const bool listed")
    ),
    "no barrier after the weights": in_decode(
        *no_barrier("", TO_SIMDGROUP, "\n\n    const int column")
    ),
    "no barrier before the next tile": in_decode(
        *no_barrier("", TO_SIMDGROUP, "  // the list and")
    ),
    "no barrier after the ranges": in_decode(*no_barrier("", TO_THREADGROUP, "\n  float greatest")),
    "no barrier after half of the sums": in_decode(
        *no_barrier("= out[r][i];\n    }\n    ", TO_THREADGROUP, "")
    ),
    "no barrier before the next half": in_decode(
        *no_barrier("* D + column + i];\n    }\n    ", TO_THREADGROUP, "")
    ),
    "the ranges ordered in a simdgroup alone": in_decode(
        TO_THREADGROUP + "\n  float greatest", TO_SIMDGROUP + "\n  float greatest", RACE
    ),
    "a barrier of half a simdgroup": in_decode(
        TO_SIMDGROUP + "\n\n    const bool listed",
        f"if (lane < 16) {TO_SIMDGROUP}\n\n    const bool listed",
        "divergence: ",
    ),
    "the mask forgotten": in_decode("live = masks[tile];", "live = ~0u;", OUTSIDE),
    "the list forgotten": in_decode("const int row = list[nth];", "const int row = nth;", OUTSIDE),
    "dead values multiplied": in_decode("(first_row + list[at]) * D", "(first_row + at) * D"),
    "the order forgotten": in_decode("listed && order <= limits[r]", "listed"),
    "the own cell not seen": in_decode("order <= limits[r]", "order < limits[r]"),
    "orders not by the list": in_decode(
        "orders[tile * TILE_ROWS + list[lane]]", "orders[tile * TILE_ROWS + lane]"
    ),
    "one tile too far": in_decode("tile < num_tiles;", "tile <= num_tiles;", OUTSIDE),
    "a tile left out": in_decode("tile < num_tiles;", "tile < num_tiles - 1;"),
    "tiles read twice": in_decode(
        "tile = split * SIMDGROUPS + simdgroup;", "tile = split + simdgroup;"
    ),
    "another KV head": in_decode(
        "first_row_of(subblocks[tile], head, kv_heads)",
        "first_row_of(subblocks[tile], 0, kv_heads)",
    ),
    "another cell's angles": in_decode(
        "cells[tile * TILE_ROWS + row]", "orders[tile * TILE_ROWS + row]", OUTSIDE
    ),
    "turned the other way": in_decode("float(a[i]) * c[i] -", "float(a[i]) * c[i] +"),
    "queries not turned": in_decode("= (a * c - b * s) *", "= a *"),
    "half of the pairs": in_decode("pair < HALF; pair += 4 * KEY_LANES", "pair < 32; pair += 32"),
    "lanes of a key not added": in_decode("step < KEY_LANES; step *= 2", "step < 4; step *= 2"),
    "the rows too far apart": in_decode("PITCH = ROWS | 1;", "PITCH = ROWS + 9;", OUTSIDE),
    "values left out": in_decode("base += VALUES * 32", "base += 2 * VALUES * 32"),
    "values twice": in_decode("base += VALUES * 32", "base += 32"),
    "a value too far": in_decode("list[at]", "list[at + 1]", RACE),
    "sums not scaled": in_decode("out[r][i] *= factor;\n      if (listed)", "if (listed)"),
    "the sum of weights not scaled": in_decode("sum = sum * factor + more", "sum = sum + more"),
    "every lane holds every row": in_decode("if (int(lane) == r) {", "if (true) {"),
    "simdgroups' sums not scaled": in_decode("* fast::exp2(range[i * ROWS * 2] - greatest)", ""),
    "the other half of the values": in_decode(
        "if (VALUE_LANES == 16) out", "if (VALUE_LANES == 8) out", DIFFERS, DECODE_64
    ),
    "one range for all": in_decode("(at + lane) * 2] =", "at * 2] =", RACE),
    "a part left out": in_decode("num_parts = parts_shape[0];", "num_parts = parts_shape[0] - 1;"),
    "parts not scaled": in_decode("x[i] += factor * from[i]", "x[i] += from[i]"),
    "a share of nothing": in_decode("total == 0 ? 0.0f : 1 / total", "1 / total"),
    "heads in another order": in_decode(
        "row / GROUP * kv_heads + head) * GROUP + row % GROUP;\n  vec",
        "row / GROUP * kv_heads + kv_heads - 1 - head) * GROUP + row % GROUP;\n  vec",
    ),
}

PREFILL_MUTANTS = {
    "no barrier after the queries": in_prefill(*no_barrier(": -1;\n  ", TO_THREADGROUP, "")),
    "too little threadgroup memory": in_prefill(
        "queries[BLOCK_ROWS * D];", "queries[BLOCK_ROWS * D - 8];", OUTSIDE
    ),
    "dead values multiplied": in_prefill(
        "is_live = live >> (8 * n + matrix_row(lane)) & 1;", "is_live = true;"
    ),
    "dead values by the wrong row": in_prefill("8 * n + matrix_row(lane)", "matrix_row(lane)"),
    "the mask forgotten": in_prefill("masks[tile] != ~0u || ", ""),
    "the dead rows' order forgotten": in_prefill("order < 0 || ", ""),
    "the order forgotten": in_prefill(" || greatest[tile] > earliest", ""),
    "the own cell not seen": in_prefill("order > limit)", "order >= limit)"),
    "limits of the wrong row": in_prefill("query_orders[row / GROUP]", "query_orders[0]"),
    "one tile too far": in_prefill("next < num_tiles &&", "next <= num_tiles &&", OUTSIDE),
    "the last tile left out": in_prefill("next < num_tiles &&", "next < num_tiles - 1 &&"),
    "a missing tile's mask": in_prefill("tile < 0 || masks", "masks", OUTSIDE),
    "a missing tile's values": in_prefill("if (tile < 0) continue;", "", OUTSIDE),
    "keys not transposed": in_prefill("D, 0, true)", "D, 0, false)"),
    "keys of another head": in_prefill(
        "(size_t(tile) * kv_heads + head) * TILE_ROWS", "(size_t(tile) * kv_heads) * TILE_ROWS"
    ),
    "values of another head": in_prefill("tile], head, kv_heads", "tile], 0, kv_heads"),
    "the rows of another simdgroup": in_prefill(
        "queries + simdgroup * 8 * D", "queries + (simdgroup ^ 1) * 8 * D"
    ),
    "the greatest of half a row": in_prefill(
        "greatest_score = max(greatest_score, simd_shuffle_xor(greatest_score, 8));", ""
    ),
    "the sum of half a row": in_prefill("more += simd_shuffle_xor(more, 8);", ""),
    "sums not scaled": in_prefill("out[d].thread_elements()[i] *= factor;", ""),
    "rows that are not": in_prefill("if (row < num_rows) {", "if (true) {", f"{OUTSIDE}|{RACE}"),
    "a pair of columns twice": in_prefill("* D + 8 * d + column)", "* D + 8 * d)", RACE),
}

ROTATE_MUTANTS = {
    "the mask forgotten": in_rotate("if (masks[tile] >> row & 1) {", "{", OUTSIDE),
    "the same half twice": in_rotate("(keys + key + HALF)", "(keys + key)"),
    "turned the other way": in_rotate("c[i] + float(a[i])", "c[i] - float(a[i])"),
    "another cell's angles": in_rotate("size_t(cells[tile * TILE_ROWS + row])", "size_t(row)"),
    "another half": in_rotate("(turned + to + HALF) = y", "(turned + to + HALF - 4) = y", RACE),
    "one head for all": in_rotate(
        "head = thread_position_in_grid.y / TILE_ROWS",
        "head = thread_position_in_grid.y / 64",
        RACE,
    ),
}

MOVING_MUTANTS = {
    "append, not by slot": in_append("row_of(slots[token],", "row_of(token,"),
    "append, keys for values": in_append("(v + from)", "(k + from)"),
    "append, heads by tokens": in_append("size_t(token) * kv_heads + head", "size_t(token) + head"),
    "append, one slot for all": in_append("row_of(slots[token],", "row_of(slots[0],", RACE),
    "append, one slot too far": in_append("slots[token]", "slots[token + 1]", OUTSIDE),
    "append, columns one by one": in_append(
        "column = 4 * thread_position_in_grid.x", "column = thread_position_in_grid.x", "misaligned"
    ),
    "append, all say that it is done": in_append(
        "if (column == 0 && head == 0 && token == 0)", "", RACE
    ),
    "gather, one slot too far": in_migrate(
        "from = row_of(slots[row],", "from = row_of(slots[row + 1],", OUTSIDE
    ),
    "gather, values over keys": in_migrate("(moved + values_of + to)", "(moved + to)"),
    "gather, keys for values": in_migrate("(values + from)", "(keys + from)"),
    "scatter, not by slot": in_migrate("to = row_of(slots[row],", "to = row_of(row,"),
    "scatter, keys for values": in_migrate("(moved + values_of + from)", "(moved + from)"),
    "scatter, all say that it is done": in_migrate(
        "if (column == 0 && head == 0 && row == 0)", "", RACE
    ),
}

SHARED_MUTANTS = {
    "the first half of each page": Mutant(
        DECODE, "shared", " + subblock % 2 * TILE_ROWS", "", DIFFERS
    ),
    "a slot in its half page": Mutant(
        None, "shared", "slot % PAGE_ROWS", "slot % TILE_ROWS", f"{RACE}|{DIFFERS}"
    ),
    "a row of a matrix": Mutant(PREFILL, "shared", "lane / 2 % 4", "lane % 4", f"{RACE}|{DIFFERS}"),
    "a column of a matrix": Mutant(
        PREFILL, "shared", "lane % 2 * 2", "lane / 2 % 2 * 2", f"{RACE}|{DIFFERS}"
    ),
}

MUTANTS = {
    f"{kind}: {name}": mutant
    for kind, table in (
        ("decode", DECODE_MUTANTS),
        ("prefill", PREFILL_MUTANTS),
        ("rotate", ROTATE_MUTANTS),
        ("moving", MOVING_MUTANTS),
        ("shared", SHARED_MUTANTS),
    )
    for name, mutant in table.items()
}


@dataclass(frozen=True)
class Given:
    """Attention's inputs and its right result; dead rows are NaN."""

    q: NDArray[np.float32]
    keys: NDArray[np.float32]
    values: NDArray[np.float32]
    step: Step
    right: NDArray[np.float64]


@cache
def given(scene: Scene) -> Given:
    rng = np.random.default_rng(11)
    # The oldest cells: two whole tiles, and two with dead rows that all but the first query see
    # throughout. The others lie anywhere behind.
    older = 64 + rng.permutation(64)[:40]
    others = 128 + rng.permutation(PAGES * PAGE_SIZE - 128)[: CELLS - 104]
    slots = np.concatenate([np.arange(64), older, others]).astype(np.int32)
    orders = np.arange(2, 2 + CELLS, dtype=np.int32)
    angles = rng.uniform(0, 2 * np.pi, (CELLS, scene.head_dim // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    new = np.sort(rng.permutation(np.arange(104, CELLS - 1))[: scene.queries])
    new[-1] = CELLS - 1
    asked = orders[new]
    asked[0] = 1
    step = Step(slots, orders, cos, sin, slots[new], asked, cos[new], sin[new])
    q = rng.standard_normal((scene.queries, scene.group * KV_HEADS, scene.head_dim), np.float32)
    k, v = 3 * rng.standard_normal((2, CELLS, KV_HEADS, scene.head_dim), np.float32)
    right = attention(q, k, v, step, scene)
    return Given(q, in_pool(k, slots), in_pool(v, slots), step, right)


def in_pool(rows: NDArray[np.float32], slots: NDArray[np.int32]) -> NDArray[np.float32]:
    """A pool that holds rows at slots, all else NaN."""
    pool = np.full((PAGES, KV_HEADS, PAGE_SIZE, rows.shape[2]), np.nan, np.float32)
    page, row = np.divmod(slots, PAGE_SIZE)
    pool[page, :, row] = rows
    return pool


def attention(q: Any, k: Any, v: Any, step: Step, scene: Scene) -> NDArray[np.float64]:
    """Attention cell by cell, in float64; 0 where nothing is seen."""

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        first, second = np.split(x.astype(np.float64), 2, axis=-1)
        c, s = (t[:, None].astype(np.float64) for t in (cos, sin))
        return np.concatenate([first * c - second * s, second * c + first * s], axis=-1)

    queries = turned(q, step.query_cos, step.query_sin)
    keys = turned(k, step.cos, step.sin)
    out = np.zeros(q.shape)
    for i, order in enumerate(step.query_orders):
        seen = step.orders <= order
        if not seen.any():
            continue
        for head in range(q.shape[1]):
            kv_head = head // scene.group
            scores = keys[seen, kv_head] @ queries[i, head] * scene.head_dim**-0.5
            weights = np.exp(scores - scores.max())
            out[i, head] = weights @ v[seen, kv_head].astype(np.float64) / weights.sum()
    return out


def fault_in_attention(launch: Any, scene: Scene) -> str:
    """`DIFFERS` where attention through the shaders is wrong, else nothing."""
    g = given(scene)
    q, keys, values = (mx.array(x) for x in (g.q, g.keys, g.values))
    step = TileArrays.of(g.step)
    got, _ = PagedAttention(launch, "")(q, keys, values, step, scene.head_dim**-0.5)
    error = np.abs(np.array(got) - g.right).max() / np.abs(g.right).max()
    return "" if error < 2e-5 else DIFFERS


def fault_in_moving(launch: Any, _: None) -> str:
    """`DIFFERS` where rows that are appended, gathered and scattered are not the very bits."""
    head_dim, count = 64, 40
    rng = np.random.default_rng(12)
    slots = rng.permutation(PAGES * PAGE_SIZE).astype(np.int32)
    source, destination = slots[:count], slots[count // 2 : count // 2 + count]
    k, v = rng.standard_normal((2, count, KV_HEADS, head_dim), np.float32)
    empty = [mx.full((PAGES, KV_HEADS, PAGE_SIZE, head_dim), float("nan")) for _ in range(2)]
    pools = WriteThroughPools([empty[0]], [empty[1]])
    mx.eval(pools.raw.keys, pools.raw.values)
    write, paged = WriteThrough(launch), PagedAttention(launch, "")
    write.append(pools, 0, mx.array(source), mx.array(k), mx.array(v))
    after = pools.after(0)
    moved = paged.gathered(pools.raw.keys[0], pools.raw.values[0], mx.array(source), after)
    write.scatter(pools, 0, mx.array(destination), moved)
    for rows, array in ((k, pools.keys[0]), (v, pools.values[0])):
        right = in_pool(np.concatenate([rows, rows]), np.concatenate([source, destination]))
        if not np.array_equal(np.array(array), right, equal_nan=True):
            return DIFFERS
    return ""


def fault_of(metal_cpu: Any, scene: Scene | None, **options: Any) -> str:
    """What the harness says, or `DIFFERS`, or nothing."""
    launch = metal_cpu(write_through=scene is None, **options)
    run: Callable[..., str] = fault_in_moving if scene is None else fault_in_attention
    try:
        return run(launch, scene)
    except MetalError as error:
        return str(error)


@pytest.mark.parametrize(
    "options",
    [{}, {"seed": 1}, {"seed": 2}, {"address_sanitizer": True}],
    ids=["in order", "seed 1", "seed 2", "sanitized"],
)
@pytest.mark.parametrize("scene", [DECODE, DECODE_64, PREFILL, None], ids=str)
def test_the_shaders_themselves_are_right(
    metal_cpu: Any, scene: Scene | None, options: dict[str, Any]
) -> None:
    assert fault_of(metal_cpu, scene, **options) == ""


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], int]:
    """`planted(file, old, new)` changes a text that occurs once; the number of its line."""

    def plant(file: str, old: str, new: str) -> int:
        texts = {name: shaders.text_of(name) for name in (*shaders.FILES, shaders.SHARED)}
        assert texts[file].count(old) == 1
        before = texts[file].partition(old)[0]
        texts[file] = texts[file].replace(old, new)
        monkeypatch.setattr(shaders, "text_of", texts.__getitem__)
        return before.count("\n") + 1

    return plant


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_a_mutant_is_found(metal_cpu: Any, planted: Any, mutant: Mutant) -> None:
    planted(mutant.file, mutant.old, mutant.new)
    assert re.search(mutant.found, fault_of(metal_cpu, mutant.scene))


@pytest.mark.parametrize(
    ("scene", "file", "old", "new"),
    [
        (DECODE, "decode_attention", "float out[ROWS][4];", "float out[ROWS - 1][4];"),
        (DECODE, "decode_attention", "vec<T, 4> value[VALUES];", "vec<T, 4> value[VALUES - 1];"),
        (PREFILL, "prefill_attention", "scores[2 * COLUMNS];", "scores[2 * COLUMNS - 1];"),
    ],
)
def test_the_sanitizer_finds_a_threads_own_array_too_small(
    metal_cpu: Any, planted: Any, scene: Scene, file: str, old: str, new: str
) -> None:
    planted(file, old, new)
    assert "stack-buffer-overflow" in fault_of(metal_cpu, scene, address_sanitizer=True)


@pytest.mark.parametrize(
    ("scene", "file", "name"),
    [
        (DECODE, "decode_attention", "masks[tile]"),
        (DECODE, "decode_attention", "parts_shape[0]"),
        (PREFILL, "prefill_attention", "subblocks[tile]"),
        (PREFILL, "rotate", "subblocks[tile]"),
        (None, "append", "slots[token]"),
        (None, "migrate", "to = row_of(slots[row]"),
        (None, "shared", "slot / PAGE_ROWS"),
    ],
)
def test_an_error_of_the_compiler_names_the_files_own_line(
    metal_cpu: Any, planted: Any, scene: Scene | None, file: str, name: str
) -> None:
    line = planted(file, name, "maks + " + name)
    assert re.search(rf"\b{file}\.metal:{line}:\d+: error: ", fault_of(metal_cpu, scene))
