"""Traces: what is written is read back, and what is none is refused in bounded memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnitide.config import MigrationConfig, RetentionConfig
from omnitide.errors import TraceError
from omnitide.simulation.shapes import SHAPES
from omnitide.simulation.simulator import simulate
from omnitide.simulation.stream import shape_stream
from omnitide.simulation.trace import MOST_BYTES, Trace
from omnitide.simulation.trace_header import TraceHeader
from omnitide.simulation.trace_line import MOST_CELLS, read_unit, write_unit
from omnitide.units import AXES, CELL, Modality, Role, Unit, UnitBuilder, UnitKind

COLUMNS = [name for name in CELL.names or () if name != "token"]

HEADER = TraceHeader(
    "model",
    "omnipick",
    "native",
    RetentionConfig(),
    largest_unit=566,
    reply=116,
    max_kv_size=None,
    migration=MigrationConfig("cost", 3, 7.5, 0.25),
)


def same(unit: Unit, other: Unit) -> bool:
    """Whether two units are equal but for their tokens; spans may be numbered with gaps."""
    return (unit.kind, unit.time, unit.seconds) == (other.kind, other.time, other.seconds) and all(
        np.array_equal(unit.cells[name], other.cells[name]) for name in COLUMNS
    )


@st.composite
def units(draw: st.DrawFn) -> Unit:
    """Any unit that a builder can make."""
    builder = UnitBuilder()
    for _ in range(draw(st.integers(0, 5))):
        count = draw(st.integers(1, 9))
        role = draw(st.sampled_from(Role))
        what = draw(st.sampled_from(["text", "markers", "content"]))
        if what == "text":
            builder.text([1] * count, role)
        elif what == "markers":
            builder.markers([1] * count)
        else:
            triple = st.tuples(*[st.integers(0, 300)] * AXES)
            offsets = draw(st.lists(triple, min_size=count, max_size=count))
            modality = draw(st.sampled_from([Modality.IMAGE, Modality.AUDIO]))
            builder.content(1, offsets, modality, role, draw(st.booleans()))
            if draw(st.booleans()):
                builder.end_step()
    moment = st.floats(0, 1e6)
    return builder.build(draw(st.sampled_from(UnitKind)), draw(st.none() | moment), draw(moment))


@given(units())
def test_any_unit_is_read_as_it_was_written(unit: Unit) -> None:
    line = json.loads(json.dumps(write_unit(unit), allow_nan=False))
    assert same(read_unit(line), unit)


@pytest.mark.parametrize("name", SHAPES)
def test_units_of_every_shape_are_read_as_they_were_written(name: str) -> None:
    for unit in SHAPES[name].units(12):
        line = json.dumps(write_unit(unit))
        assert same(read_unit(json.loads(line)), unit)


def test_lines_are_short() -> None:
    film = next(u for u in SHAPES["qwen-448"].units(2) if u.kind == UnitKind.MEDIA)
    text = UnitBuilder().text([7] * 1000).build(UnitKind.TEXT)
    assert len(json.dumps(write_unit(film))) < 3 * len(film)
    assert len(json.dumps(write_unit(text))) < 200
    assert "token" not in json.dumps(write_unit(text))


def test_a_unit_too_large_to_be_read_is_not_written() -> None:
    unit = UnitBuilder().text(np.zeros(MOST_CELLS + 1, np.int32)).build(UnitKind.TEXT)
    with pytest.raises(TraceError, match="at most 262,144 fit"):
        write_unit(unit)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """`write(*lines)` writes bytes, text or plain data to a file, each with a line's end."""

    def write_lines(*lines: Any, end: bytes = b"\n") -> Path:
        path = tmp_path / "some.jsonl"
        encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        path.write_bytes(b"\n".join(encoded) + end)
        return path

    return write_lines


def lines_of(shape: str, count: int) -> list[Any]:
    """Header and units of a shape."""
    return [HEADER.write(), *(write_unit(u) for u in SHAPES[shape].units(count))]


def test_a_trace_is_simulated_like_the_stream_it_was_made_of(write: Callable[..., Path]) -> None:
    stream = shape_stream(SHAPES["qwen-448"], 40)
    trace = Trace(write(*lines_of("qwen-448", 40)))
    assert trace.header == HEADER
    read = trace.stream()
    assert (read.prefix, read.largest_unit) == (43, 566)
    for policy in ("omnipick", "fifo"):
        rows = [simulate(s, policy, "native").as_dict() for s in (stream, read)]
        for row in rows:
            for name in ("plan_ms_p50", "plan_ms_max", "shape", "capacity_pages"):
                del row[name]
        assert rows[0] == rows[1]
        assert rows[0]["evictions"] > 5


def test_two_policies_differ_on_one_trace(write: Callable[..., Path]) -> None:
    read = Trace(write(*lines_of("qwen-448", 60))).stream()
    omnipick, fifo = (simulate(read, policy) for policy in ("omnipick", "fifo"))
    assert omnipick.tokens_seen == fifo.tokens_seen
    assert omnipick.kept_units > 2 * fifo.kept_units
    assert fifo.whole_units == fifo.kept_units


def test_a_trace_written_before_a_setting_was_known_takes_its_default(
    write: Callable[..., Path],
) -> None:
    line = HEADER.write()
    del line["retention"]["text_budget"]
    line["retention"]["of_tomorrow"] = "unknown"
    assert Trace(write(line)).header == HEADER


def header(**changes: Any) -> dict[str, Any]:
    """The header with fields replaced."""
    return {**HEADER.write(), **changes}


def retention(**changes: Any) -> dict[str, Any]:
    """The header with settings replaced."""
    return header(retention={**HEADER.write()["retention"], **changes})


def migration(**changes: Any) -> dict[str, Any]:
    """The header with settings of the moves replaced."""
    return header(migration={**HEADER.write()["migration"], **changes})


BAD_HEADERS: dict[str, Any] = {
    "empty": b"",
    "no JSON": b"\x00\x01\x02",
    "no UTF-8": b'"\xff\xfe"',
    "a list": [],
    "another format": {"format": "else", "version": 1},
    "another version": header(version=2),
    "a version of a million digits": b'{"format":"omnitide trace","version":' + b"9" * 10**6 + b"}",
    "a true version": header(version=True),
    "a version in words": header(version="1"),
    "a fractional version": header(version=1.0),
    "no settings": header(retention=None),
    "a negative budget": retention(text_budget=-1),
    "a huge watermark": retention(high_watermark=10**30),
    "watermarks crossed": retention(low_watermark=9000),
    "words for a number": retention(high_watermark="2500"),
    "NaN": b'{"format":"omnitide trace","version":1,"retention":{"recent_share":NaN}}',
    "a number for a name": header(policy=7),
    "no moves": header(migration=None),
    "an unknown rule": migration(accept="best"),
    "a number for a rule": migration(accept=3),
    "no pages": migration(span_pages=0),
    "a missing count of pages": migration(span_pages=None),
    "a negative cost": migration(tile_cost_us=-1.0),
    "a huge cost": migration(row_cost_us=1e300),
    "words for a cost": migration(row_cost_us="1"),
    "one cost of two": migration(tile_cost_us=None),
    "costs that no rule reads": migration(accept="tiles"),
    "a negative unit": header(largest_unit=-5),
    "deep nesting": b"[" * 10**5,
}


@pytest.mark.parametrize("line", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_bad_headers_are_refused(line: Any, write: Callable[..., Path]) -> None:
    with pytest.raises(TraceError, match=r"^\[trace\] .*some.jsonl, line 1: "):
        Trace(write(line))


def test_another_version_is_told_from_the_one_that_is_read(write: Callable[..., Path]) -> None:
    with pytest.raises(TraceError, match=r"has version '1', this omnitide reads 1$"):
        Trace(write(header(version="1")))


GOOD = write_unit(UnitBuilder().text([1] * 4).build(UnitKind.TEXT, 1.0, 2.0))


def unit_with(**changes: Any) -> dict[str, Any]:
    """A good unit with fields replaced."""
    return {**GOOD, **changes}


def span_with(**changes: Any) -> dict[str, Any]:
    """A good unit with fields of its span replaced."""
    return unit_with(spans=[{**GOOD["spans"][0], **changes}])


def run_with(*run: Any) -> dict[str, Any]:
    """A good unit with another run."""
    return span_with(runs=[list(run)])


BAD_UNITS: dict[str, Any] = {
    "a list": [],
    "null": None,
    "empty line": b"",
    "half a line": b'{"kind":"text","ti',
    "an unknown kind": unit_with(kind="picture"),
    "a second system prefix": unit_with(kind="system"),
    "negative time": unit_with(time=-1),
    "endless time": b'{"kind":"text","time":1e999,"seconds":0,"spans":[]}',
    "NaN seconds": b'{"kind":"text","time":0,"seconds":NaN,"spans":[]}',
    "words for seconds": unit_with(seconds="2"),
    "true seconds": unit_with(seconds=True),
    "no spans": unit_with(spans=None),
    "a span that is none": unit_with(spans=[3]),
    "an unknown modality": span_with(modality="smell"),
    "an unknown role": span_with(role=1),
    "a number for a truth": span_with(advances=1),
    "no runs": span_with(runs=[]),
    "a short run": run_with(4, 0, 0),
    "a run of none": run_with(0, 0, 0, 0, 0, 1, 0, 0, 0),
    "a negative length": run_with(-4, 0, 0, 0, 0, 1, 0, 0, 0),
    "a fraction": run_with(4.0, 0, 0, 0, 0, 1, 0, 0, 0),
    "a truth for a length": run_with(True, 0, 0, 0, 0, 1, 0, 0, 0),
    "a huge length": run_with(10**18, 0, 0, 0, 0, 1, 0, 0, 0),
    "many long runs": span_with(runs=[[MOST_CELLS, 0, 0, 0, 0, 0, 0, 0, 0]] * 1000),
    "many long spans": unit_with(
        spans=[{**GOOD["spans"][0], "runs": [[MOST_CELLS, 0, 0, 0, 0, 0, 0, 0, 0]]}] * 1000
    ),
    "a huge step": run_with(2, 0, 0, 0, 0, 2**40, 0, 0, 0),
    "steps that run off": run_with(MOST_CELLS, 0, 0, 0, 0, 2, 0, 0, 0),
    "a negative step": run_with(2, -1, 0, 0, 0, 1, 0, 0, 0),
    "negative offsets": run_with(4, 0, 2, 0, 0, 0, -1, 0, 0),
    "steps that go back": run_with(3, 2, 0, 0, 0, -1, 0, 0, 0),
    "deep nesting": b"[" * 10**6,
}


@pytest.mark.parametrize("line", BAD_UNITS.values(), ids=BAD_UNITS)
def test_bad_units_are_refused_in_little_memory(line: Any, write: Callable[..., Path]) -> None:
    trace = Trace(write(*lines_of("audio", 3), line))
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match=r"^\[trace\] .*some.jsonl, line 6: "):
            list(trace.units())
        assert tracemalloc.get_traced_memory()[1] < 150e6
    finally:
        tracemalloc.stop()


def test_a_line_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.write(json.dumps(HEADER.write()).encode() + b"\n[")
        file.seek(10**9)  # a file with a hole: a line of a gigabyte that takes no disk
        file.write(b"]\n")
    trace = Trace(path)
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match=f"line 2: has more than {MOST_BYTES:,} bytes"):
            list(trace.units())
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_a_trace_that_was_cut_off_is_refused(write: Callable[..., Path]) -> None:
    path = write(*lines_of("audio", 3), end=b"")
    with pytest.raises(TraceError, match="line 5: is cut off"):
        list(Trace(path).units())


def test_a_trace_without_a_prefix_is_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(TraceError, match="the first unit must be the system prefix"):
        Trace(write(HEADER.write(), GOOD)).stream()


def test_a_trace_of_a_header_alone_is_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(TraceError, match="holds no units"):
        Trace(write(HEADER.write())).stream()


@pytest.mark.parametrize("name", ["absent.jsonl", ".", "a\0b", "x" * 5000])
def test_what_is_no_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="must be an existing file"):
        Trace(tmp_path / name)
