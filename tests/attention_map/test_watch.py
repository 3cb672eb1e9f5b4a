"""What a watch sees, against the attention that transformers returns for the same tokens.

The oracle goes token by token through transformers' probabilities and the history's records; it
shares no code with the package.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide import RetentionConfig, Session
from omnitide.attention_map import watch as watching
from omnitide.attention_map.watch import AttentionWatch
from omnitide.backends import BackendInfo, describe_backends, load_backend
from omnitide.errors import ConfigError
from omnitide.media.chunk import MediaChunk
from omnitide.model import EncodedUnit
from omnitide.models import load_model
from omnitide.units import Modality, Role, UnitKind

Chunk = Callable[..., MediaChunk]
Open = Callable[..., tuple[Session, AttentionWatch]]
Floats = NDArray[np.float64]

PREFIX, BOUNDARY, TEXT, SOURCE, IMAGE, AUDIO = 0, 1, 2, 3, 4, 37


def follow(session: Session, chunk: Chunk, chunks: int = 3) -> list[Any]:
    """A stream with a text and a question on the way; the embeddings of all that was appended."""
    embeddings: list[Any] = []
    append, extend = session.cache.append, session.cache.extend

    def noted_append(encoded: EncodedUnit, **changes: Any) -> Any:
        embeddings.append(np.array(encoded.embeddings))
        return append(encoded, **changes)

    def noted_extend(unit: Any, rows: Any, **changes: Any) -> Any:
        embeddings.append(np.array(rows))
        return extend(unit, rows, **changes)

    session.cache.append = noted_append  # type: ignore[method-assign]
    session.cache.extend = noted_extend  # type: ignore[method-assign]
    session.append_media(chunk(0))
    session.append_text("A note.")
    for index in range(1, chunks):
        session.append_media(chunk(index, picture=index != 2))
    list(session.ask("What?", max_tokens=3))
    return embeddings


def transformers_attention(thinker: Any, session: Session, embeddings: list[Any]) -> list[Floats]:
    """Probabilities of each layer, shape (num_heads, num_tokens, num_tokens), in one prefill."""
    import torch

    prefix = session.model.encode_system(None).embeddings
    hidden = torch.from_numpy(np.concatenate([prefix, *embeddings]))[None]
    positions = session.cache.history.cells["position"].T.astype(np.int64)
    with torch.no_grad():
        found = thinker.model.language_model(
            inputs_embeds=hidden,
            position_ids=torch.from_numpy(positions[:, None].copy()),
            output_attentions=True,
        )
    return [layer[0].numpy().astype(np.float64) for layer in found.attentions]


def class_by_hand(session: Session) -> list[int]:
    """Class of each token: by unit, role and modality, and by its place in its span."""
    kinds = {unit.id: unit.kind for unit in session.cache.history.units}
    classes, rank, last = [], 0, None
    for cell in session.cache.history.cells:
        span = (int(cell["unit"]), int(cell["span"]))
        rank = rank + 1 if span == last else 0
        last = span
        if kinds[int(cell["unit"])] is UnitKind.SYSTEM:
            classes.append(PREFIX)
        elif cell["role"] == Role.BOUNDARY:
            classes.append(BOUNDARY)
        elif cell["modality"] == Modality.TEXT:
            classes.append(TEXT)
        else:
            first = IMAGE if cell["modality"] == Modality.IMAGE else AUDIO
            classes.append(first + min(rank, 32))
    return classes


@pytest.fixture
def seen(
    watched: Open, chunk: Chunk, transformers_thinker: Any, tiny_checkpoint: Callable[..., Path]
) -> tuple[Session, AttentionWatch, list[Floats]]:
    session, watch = watched()
    embeddings = follow(session, chunk)
    thinker = transformers_thinker(tiny_checkpoint())
    return session, watch, transformers_attention(thinker, session, embeddings)


def test_shares_are_what_transformers_attends_with(
    seen: tuple[Session, AttentionWatch, list[Floats]],
) -> None:
    session, watch, attentions = seen
    cells, classes = session.cache.history.cells, class_by_hand(session)
    units = cells["unit"].tolist()
    first = int((cells["unit"] == 0).sum())  # the prefix was there before the watch
    received: dict[tuple[int, int, int, int], float] = defaultdict(float)
    even: dict[tuple[int, int], float] = defaultdict(float)
    for query in range(first, len(cells)):
        for cell in range(query + 1):
            place = units[query] - units[cell], classes[cell]
            even[place] += 1 / (query + 1)
            for layer, attention in enumerate(attentions):
                for head in range(attention.shape[0]):
                    received[layer, head, *place] += attention[head, query, cell]
    assert len(even) > 100
    assert {BOUNDARY, TEXT, IMAGE, IMAGE + 3, AUDIO, AUDIO + 32} <= set(classes)
    wanted = np.zeros_like(watch.shares.received)
    for key, value in received.items():
        wanted[key] = value
    np.testing.assert_allclose(watch.shares.received, wanted, atol=2e-5 * wanted.max())
    for place, value in even.items():
        assert watch.shares.even[(slice(None), *place)] == pytest.approx(value, rel=1e-9)
    assert watch.shares.even.sum() == pytest.approx(3 * (len(cells) - first))
    assert watch.shares.queries.tolist() == [len(cells) - first] * 3
    assert watch.contents.tolist() == classes
    assert watch.units.tolist() == units


def test_the_grid_holds_the_same_attention_in_bins(
    seen: tuple[Session, AttentionWatch, list[Floats]],
) -> None:
    session, watch, attentions = seen
    count = len(session.cache.history)
    assert 128 < count <= 256
    assert watch.grid.bin == 4  # 64 bins of 2 tokens are too few
    first = int((session.cache.history.cells["unit"] == 0).sum())
    wanted = np.full((2, 64, 64), np.nan)
    for row in range(64):
        queries = [q for q in range(4 * row, 4 * row + 4) if first <= q < count]
        for column in range(64 if queries else 0):
            block = attentions[1][:, queries, 4 * column : 4 * column + 4]
            wanted[:, row, column] = block.sum(axis=2).mean(axis=1)
    assert np.isnan(wanted).any()
    np.testing.assert_allclose(watch.grid.mean([1], [0]), wanted[0], atol=2e-5)
    np.testing.assert_allclose(watch.grid.mean([1], [0, 1]), wanted.mean(axis=0), atol=2e-5)
    rows = watch.grid.mean([0, 1, 2], [0, 1]).sum(axis=1)
    np.testing.assert_allclose(rows[~np.isnan(rows)], 1, atol=1e-5)


def test_pieces_change_nothing(
    watched: Open, chunk: Chunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, whole = watched()
    follow(session, chunk)
    monkeypatch.setattr(watching, "WEIGHTS_AT_ONCE", 1500)
    asked: list[int] = []
    weights = session.model.backend.attention_weights

    def noted(q: Any, pools: Any, layer: int, step: Any, scale: float) -> Any:
        asked.append(q.shape[0] * q.shape[1] * step.num_cells)
        assert step.num_queries == q.shape[0]
        return weights(q, pools, layer, step, scale)

    monkeypatch.setattr(session.model.backend, "attention_weights", noted)
    session, cut = watched()
    follow(session, chunk)
    assert max(asked) <= 1500
    assert len(asked) > 3 * session.model.spec.num_layers * len(session.cache.history.units)
    np.testing.assert_allclose(cut.shares.received, whole.shares.received, atol=1e-4)
    np.testing.assert_allclose(cut.shares.even, whole.shares.even)
    np.testing.assert_allclose(cut.grid.sums, whole.grid.sums, atol=1e-4)
    assert (cut.grid.queries == whole.grid.queries).all()


@pytest.mark.parametrize("info", [pytest.param(i, id=i.name) for i in describe_backends()])
def test_every_backend_sees_the_same(
    info: BackendInfo, watched: Open, chunk: Chunk, model: Any, tiny_checkpoint: Any
) -> None:
    if not info.available:
        pytest.skip(f"{info.name} is not available: {info.note}")
    session, wanted = watched(queries=20)
    follow(session, chunk, chunks=2)
    backend = load_backend(info.name, "float32")
    other = backend.run(load_model, tiny_checkpoint(), backend, media=model.media)
    session = Session(other, policy="full", max_tokens=12, largest_unit=100)
    watch = session.cache.watcher = AttentionWatch(3, 2, 20, size=64)
    session.append_media(chunk(0))
    session.append_text("A note.")
    session.append_media(chunk(1))
    list(session.ask("What?", max_tokens=3))
    scale = wanted.shares.received.max()
    np.testing.assert_allclose(watch.shares.received, wanted.shares.received, atol=1e-4 * scale)
    np.testing.assert_allclose(watch.grid.sums, wanted.grid.sums, atol=1e-3)


def test_a_part_of_the_queries_is_spread_over_each_pass(watched: Open, chunk: Chunk) -> None:
    session, watch = watched(queries=5)
    session.append_media(chunk(0))
    begin = int((session.cache.history.cells["unit"] == 0).sum())
    seen = watch(session.cache.history, begin, begin + 62)
    assert seen.chosen.tolist() == [0, 15, 30, 46, 61]
    assert watch(session.cache.history, begin, begin + 3).chosen.tolist() == [0, 1, 2]
    assert AttentionWatch(1, 1, 1)(session.cache.history, begin, begin + 62).chosen.tolist() == [61]
    assert watch.shares.queries.tolist() == [5, 5, 5]
    assert watch.shares.received.sum(axis=(2, 3)) == pytest.approx(5.0, rel=1e-5)


def test_only_chosen_layers_are_looked_at(watched: Open, chunk: Chunk) -> None:
    session, every = watched()
    follow(session, chunk)
    session, some = watched(layers=(2, 0, 2))
    follow(session, chunk)
    assert some.layers == [0, 2]
    np.testing.assert_array_equal(some.shares.received, every.shares.received[[0, 2]])
    np.testing.assert_array_equal(some.grid.sums, every.grid.sums[[0, 2]])


@pytest.mark.parametrize("policy", ["omnipick", "h2o"])
def test_a_watch_changes_no_reply_and_lives_with_evictions(
    policy: str, watched: Open, chunk: Chunk
) -> None:
    tight = RetentionConfig(high_watermark=300, low_watermark=200, recent_units=1, text_budget=40)
    replies = []
    for watcher in (True, False):
        session, watch = watched(policy=policy, retention=tight)
        if not watcher:
            session.cache.watcher = None
        for index in range(9):
            session.append_media(chunk(index))
        replies.append([response.token for response in session.ask("What?")])
        assert session.stats().evictions > 1
        if watcher:
            tokens = session.cache.history.tokens_seen
            assert len(watch.contents) == tokens
            assert watch.grid.bin * 64 >= tokens
            rows = watch.grid.mean([0, 1, 2], [0, 1]).sum(axis=1)
            np.testing.assert_allclose(rows[~np.isnan(rows)], 1, atol=1e-5)
        else:
            assert not watch.shares.queries.any()
    assert replies[0] == replies[1]


@pytest.mark.parametrize(
    ("queries", "layers", "message"),
    [
        (0, (), r"--queries must be at least 1, got 0"),
        (4, (1, 3), r"--layer must lie in \[0, 3\), got 3"),
        (4, (-1,), r"--layer must lie in \[0, 3\), got -1"),
    ],
)
def test_bad_choices_are_refused(queries: int, layers: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AttentionWatch(3, 2, queries, layers)
