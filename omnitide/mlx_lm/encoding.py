"""The state of a layer as plain values and back: nested tuples of arrays, numbers and strings.

A layer's state holds all that its ledger knows, so that a layer can be stored and set by itself, as
mlx-lm and mlx-vlm do it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np

from omnitide.errors import CacheFileError
from omnitide.history import History
from omnitide.mlx_lm.pending import Pending
from omnitide.mlx_lm.prompt_state import PromptState
from omnitide.mlx_lm.rows import Rows
from omnitide.mlx_lm.segments import Place
from omnitide.units import Role, Unit, UnitBuilder, UnitKind

VERSION = 1
"""Of the form of a state. A file or a state of another version is refused."""

COLUMNS = ("token", "unit", "span", "role", "order")

Encoded = tuple[int, str, Any, Any, Any]
"""Version, words and numbers as JSON, cells (num_cells, 5), pending tokens, written positions."""


def encode_ledger(state: PromptState, pending: Pending) -> Encoded:
    """What all layers share. Waits for tokens that are still being computed."""
    history = state.history
    cells = np.stack([history.cells[c].astype(np.int64) for c in COLUMNS], axis=1)
    words = {
        "rows": state.rows,
        "units": [[u.id, u.kind.value, u.length, u.words] for u in history.units],
        "next": [history.next_unit, history.next_order, history.tokens_seen],
        "place": [state.place.kind.value, state.place.fresh, state.place.prefix],
        "seen": [state.tokens_seen, state.evictions],
    }
    return (
        VERSION,
        json.dumps(words),
        mx.array(cells, mx.int64),
        mx.array(pending.read()),
        mx.array(state.written),
    )


def decode_ledger(ledger: Sequence[Any], layers: tuple[Rows, ...]) -> tuple[PromptState, Pending]:
    """What `encode_ledger` made, with the rows of each layer.

    Raises:
        CacheFileError: It is of another version, or does not hold together.
    """
    version, *rest = ledger
    if version != VERSION:
        raise CacheFileError(
            f"[mlx-lm] the state of a cache has version {version!r}, this is version {VERSION}; "
            "make it anew"
        )
    try:
        text, cells, pending, written = rest
        words = json.loads(text)
        table = np.array(cells).reshape(-1, len(COLUMNS))
        tokens = np.array(pending).astype(np.int32).reshape(-1)
        positions = np.array(written).astype(np.int32).reshape(-1)
        history = _history(table, words)
        rows = int(words["rows"])
        kind, fresh, prefix = words["place"]
        seen, evictions = (int(i) for i in words["seen"])
        place = Place(UnitKind(kind), bool(fresh), bool(prefix))
    except (ValueError, TypeError, KeyError, LookupError) as error:
        raise _broken(str(error)) from error
    if len(history) + len(tokens) != rows:
        raise _broken(f"{len(history):,} cells and {len(tokens):,} tokens for {rows:,} rows")
    if len(positions) > rows or (len(positions) and positions.min() < 0):
        raise _broken(f"{len(positions):,} written positions for {rows:,} rows")
    state = PromptState(layers, rows, history, place, positions, seen, evictions)
    return state, Pending(tokens)


def encode_rows(rows: Rows, count: int, written: int) -> tuple[Any, Any, Any]:
    """Keys, values and keys as written of the live rows."""
    keys, values = rows.first(count)
    kept = rows.written
    return keys, values, None if kept is None else kept[..., :written, :]


def check_rows(rows: Rows, count: int, written: int) -> None:
    """Compare arrays with what the ledger says of them.

    Raises:
        CacheFileError: They disagree.
    """
    if rows.keys is None and rows.values is None and count == 0:
        return
    if rows.keys is None or rows.values is None:
        raise _broken(f"no keys or no values for {count:,} rows")
    shapes = [rows.keys.shape, rows.values.shape]
    wanted = [count, count]
    if rows.written is not None:
        shapes.append(rows.written.shape)
        wanted.append(written)
        if rows.written.dtype != rows.keys.dtype or shapes[2][1::2] != shapes[0][1::2]:
            raise _broken(f"keys as written of shape {shapes[2]} beside keys of shape {shapes[0]}")
    for shape, many in zip(shapes, wanted, strict=True):
        if len(shape) != 4 or shape[0] != 1 or shape[2] != many:
            raise _broken(f"an array of shape {tuple(shape)} for {many:,} rows")


def _history(table: Any, words: dict[str, Any]) -> History:
    """Build the history anew; `append` lays out positions and slots."""
    history = History()
    for number, kind, _, _ in words["units"]:
        cells = table[table[:, 1] == number]
        builder = UnitBuilder()
        for span in np.unique(cells[:, 2]):
            run = cells[cells[:, 2] == span]
            builder.text(run[:, 0], Role(int(run[0, 3])))
        unit: Unit = builder.build(UnitKind(kind))
        first = len(history)
        history = history.append(unit, np.arange(first, first + len(unit), dtype=np.int32))
    if len(history) != len(table) or not np.array_equal(history.cells["token"], table[:, 0]):
        raise ValueError(f"{len(table):,} cells don't belong to {len(words['units']):,} units")
    return _as_it_was(history, table, words)


def _as_it_was(history: History, table: Any, words: dict[str, Any]) -> History:
    """The history with the numbers that its units and cells had."""
    cells = history.cells.copy()
    for place, column in enumerate(COLUMNS):
        cells[column] = table[:, place]
    units = tuple(
        replace(record, id=int(number), length=int(length), words=int(count))
        for record, (number, _, length, count) in zip(history.units, words["units"], strict=True)
    )
    next_unit, next_order, seen = (int(i) for i in words["next"])
    return replace(
        history,
        units=units,
        cells=cells,
        next_unit=next_unit,
        next_order=next_order,
        tokens_seen=seen,
        _buffer=cells,
    )


def _broken(what: str) -> CacheFileError:
    return CacheFileError(f"[mlx-lm] the state of a cache does not hold together: {what}")
