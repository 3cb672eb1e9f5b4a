"""What `--dry-run` tells of a long history, against what NumPy allocated while it was taken in."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnitide import MediaOptions, RetentionConfig, Session
from omnitide.backend import Backend
from omnitide.memory import MemoryNeed, Room, memory_need, record_bytes
from omnitide.models.outline import read_outline

CELLS, UNIT, REPLY = 4_096, 256, 8
SMALLEST = MediaOptions(max_pixels=56 * 56, fps=1.0, chunk_seconds=1.0)


@pytest.fixture
def folder(tiny_checkpoint: Callable[..., Path]) -> Path:
    """Two layers, so that what one layer holds is not mistaken for what all do."""
    return tiny_checkpoint(layers=2)


@pytest.fixture
def told(folder: Path, reference: Backend) -> Callable[[int | None], MemoryNeed]:
    """Of a full history of `CELLS` tokens."""

    def tell(kv_bits: int | None) -> MemoryNeed:
        return memory_need(
            read_outline(folder),
            reference,
            policy="full",
            retention=RetentionConfig(),
            media=SMALLEST,
            room=Room(prefix=UNIT, unit=UNIT, reply=REPLY),
            max_kv_size=CELLS,
            kv_bits=kv_bits,
        )

    return tell


def _filled(session: Session, most: list[int]) -> None:
    """Append text until there is room for no more, and note the most bytes that were traced."""
    text = "x" * (UNIT - 16)
    while len(session.cache.history) < CELLS - 2 * UNIT:
        session.append_text(text)
    most.append(tracemalloc.get_traced_memory()[1])


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_scratch_of_a_long_history_is_what_is_allocated(
    kv_bits: int | None,
    folder: Path,
    reference: Backend,
    load: Any,
    told: Callable[[int | None], MemoryNeed],
) -> None:
    model, most = load(folder, reference), list[int]()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        session = Session(
            model, policy="full", max_kv_size=CELLS, max_tokens=REPLY, kv_bits=kv_bits
        )
        _filled(session, most)
    finally:
        tracemalloc.stop()
    need = told(kv_bits)
    held = most[0] - before - session.cache.pools.nbytes
    assert held <= need.scratch_bytes
    assert need.scratch_bytes <= 1.75 * held  # a quarter is for what no array is


def test_a_history_of_twice_the_length_takes_twice_the_records() -> None:
    assert record_bytes(8_000, 128) == 2 * record_bytes(4_000, 128)


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_records_are_not_counted_where_the_host_has_other_memory(
    kv_bits: int | None,
    reference: Backend,
    told: Callable[[int | None], MemoryNeed],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = told(kv_bits).scratch_bytes
    monkeypatch.setattr(type(reference), "in_main_memory", False)
    apart = told(kv_bits).scratch_bytes
    assert together == (apart + record_bytes(CELLS, 128)) * 5 // 4


def test_memory_that_passes_keep_is_counted_beside_that_of_another(
    reference: Backend,
    told: Callable[[int | None], MemoryNeed],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(reference), "in_main_memory", False)
    once = told(None).scratch_bytes
    monkeypatch.setattr(type(reference), "keeps_passes", True)
    # The pass is what holds most here: the encoders of the tiny model hold less.
    assert told(None).scratch_bytes == 2 * once
