"""One line of a trace: a unit as JSON, its cells in runs, and back.

A span is its modality, its role, whether it counts for the extent of its step, and its runs. A
run is nine integers: the number of cells; step and three offsets of its first cell; what each next
cell adds to these four. Text of any length is one run, a row of a picture is one. Token ids are
left out.

Reading trusts nothing: types, signs and sizes are checked before anything is made of them.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.errors import TraceError
from omnitide.units import AXES, CELL, Cells, Modality, Role, Unit, UnitKind, span_starts

MOST_CELLS = 1 << 18
"""Cells of a unit, and the greatest step or offset in it."""

FIELDS = 1 + AXES
"""Columns that runs hold: the step and the offsets."""

Line = dict[str, Any]


def write_unit(unit: Unit) -> Line:
    """A unit as plain data, ready for JSON.

    Raises:
        TraceError: It is larger than can be read back.
    """
    cells = unit.cells
    if len(cells) > MOST_CELLS:
        raise TraceError(f"[trace] a unit has {len(cells):,} tokens, at most {MOST_CELLS:,} fit")
    starts = [*span_starts(cells).tolist(), len(cells)]
    spans = [_write_span(cells[a:b]) for a, b in pairwise(starts)]
    return {"kind": str(unit.kind), "time": unit.time, "seconds": unit.seconds, "spans": spans}


def _write_span(cells: Cells) -> Line:
    columns = np.column_stack([cells["step"], cells["offset"]]).astype(np.int64)
    changes = np.diff(columns, axis=0)
    runs, first = [], 0
    while first < len(columns):
        change = changes[first] if first < len(changes) else np.zeros(FIELDS, np.int64)
        broken = np.flatnonzero((changes[first:] != change).any(axis=1))
        stop = first + int(broken[0]) + 1 if len(broken) else len(columns)
        runs.append([stop - first, *columns[first].tolist(), *change.tolist()])
        first = stop
    return {
        "modality": Modality(int(cells["modality"][0])).name.lower(),
        "role": Role(int(cells["role"][0])).name.lower(),
        "advances": bool(cells["advances"][0]),
        "runs": runs,
    }


def read_unit(line: Any) -> Unit:
    """A unit from plain data that came from anywhere. Its tokens are all 0.

    Raises:
        TraceError: It is no unit; the message says what is wrong.
    """
    kind = _named(_field(line, "kind", str), {str(k): k for k in UnitKind}, "kind")
    time = line.get("time")
    seconds = _seconds(line.get("seconds"), "seconds")
    time = None if time is None else _seconds(time, "time")
    blocks: list[Cells] = []
    total = 0
    for number, span in enumerate(_field(line, "spans", list)):
        block = _read_span(span, number, MOST_CELLS - total)
        total += len(block)
        blocks.append(block)
    cells = np.concatenate(blocks) if blocks else np.empty(0, CELL)
    if (np.diff(cells["step"]) < 0).any():
        raise TraceError("steps must not go back within a unit")
    return Unit(kind, cells, time, seconds)


_MODALITIES = {m.name.lower(): m for m in Modality}
_ROLES = {r.name.lower(): r for r in Role}


def _read_span(span: Any, number: int, most: int) -> Cells:
    modality = _named(_field(span, "modality", str), _MODALITIES, "modality")
    role = _named(_field(span, "role", str), _ROLES, "role")
    advances = _field(span, "advances", bool)
    pieces: list[NDArray[np.int64]] = []
    total = 0
    for run in _field(span, "runs", list):
        pieces.append(_read_run(run, most - total))
        total += len(pieces[-1])
    if not pieces:
        raise TraceError("a span must have a run")
    columns = np.concatenate(pieces)
    block = np.zeros(total, CELL)
    for column in ("unit", "order", "position", "slot"):
        block[column] = -1
    block["span"] = number
    block["modality"] = modality
    block["role"] = role
    block["step"] = columns[:, 0]
    block["offset"] = columns[:, 1:]
    block["advances"] = advances
    return block


def _read_run(run: Any, most: int) -> NDArray[np.int64]:
    """Steps and offsets of a run's cells, shape (cells, FIELDS)."""
    if not isinstance(run, list) or len(run) != 1 + 2 * FIELDS:
        raise TraceError(f"a run must be a list of {1 + 2 * FIELDS} integers")
    if any(type(value) is not int for value in run):
        raise TraceError("a run must hold integers only")
    if any(abs(value) > MOST_CELLS for value in run):
        raise TraceError(f"a number of a run is larger than {MOST_CELLS:,}")
    count = run[0]
    if count < 1:
        raise TraceError(f"a run must have at least one cell, got {count}")
    if count > most:
        raise TraceError(f"a unit has more than {MOST_CELLS:,} cells")
    first, change = np.array(run[1 : 1 + FIELDS]), np.array(run[1 + FIELDS :])
    columns: NDArray[np.int64] = first + np.arange(count)[:, None] * change
    if columns.min() < 0 or columns.max() > MOST_CELLS:
        raise TraceError(f"steps and offsets must lie in [0, {MOST_CELLS:,}]")
    return columns


def _field(line: Any, key: str, kind: type) -> Any:
    if not isinstance(line, dict):
        raise TraceError(f"expected an object, got {type(line).__name__}")
    value = line.get(key)
    if type(value) is not kind:
        found = "nothing" if value is None else type(value).__name__
        raise TraceError(f"{key} must be of type {kind.__name__}, got {found}")
    return value


def _named(name: str, names: dict[str, Any], key: str) -> Any:
    if name not in names:
        raise TraceError(f"{key} must be one of {', '.join(names)}; got {name[:40]!r}")
    return names[name]


def _seconds(value: Any, key: str) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e9 or not math.isfinite(value):
        raise TraceError(f"{key} must be seconds, at least 0, got {str(value)[:40]}")
    return float(value)
