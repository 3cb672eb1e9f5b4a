"""Rows against what a session lays out, and against the plain definition of who sees whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide.config import MediaOptions, RetentionConfig
from omnitide.media.chunk import MediaChunk
from omnitide.policies.omnipick import OmniPick
from omnitide.session import Session
from omnitide.units import Modality, span_ranks

pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture(scope="module")
def session(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_settings: Any,
    tokenizer_folder: Path,
    reference: Any,
    load: Any,
) -> Callable[[], Any]:
    """New sessions with a random model of `tiny_settings` and the tokenizer of the rows."""
    from omnitide.models.qwen2_5_omni.tiny import write_random_checkpoint

    folder = tmp_path_factory.mktemp("session")
    write_random_checkpoint(folder, tiny_settings.config(trained=False))
    for file in tokenizer_folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    media = MediaOptions(max_pixels=112 * 112)
    model = load(folder, reference, media)
    room = RetentionConfig(high_watermark=5000, low_watermark=5000)

    def make() -> Any:
        return Session(model, policy="full", retention=room)

    return make


def _follow(session: Any, script: Any, upto: int, questions: list[Any]) -> Any:
    """Cells of a session that saw a script to the end of a unit, in-line questions answered."""
    random = np.random.default_rng(0)
    for unit in range(upto + 1):
        frames = tuple(random.integers(0, 256, (4, 112, 112, 3), dtype=np.uint8))
        sound = (0.1 * random.standard_normal(32_000)).astype(np.float32)
        times = tuple(2 * unit + np.arange(4) / 2)
        session.append_media(MediaChunk(2 * unit, 2 * unit + 2, frames, times, sound))
        for typed in script.typed:
            if typed.after == unit:
                session.append_text(typed.text)
        for question in questions:
            if question.after == unit:
                _answer(session, question)
    return session.cache.history.cells


def _answer(session: Any, question: Any) -> None:
    """Ask, and let the model's choice be the answer."""
    from omnitide import session as module

    tokenizer = session.model._template.tokenizer
    tokens = iter([*tokenizer.encode(question.answer), session.model._template.end_of_turn])

    class Scripted:
        def __init__(self, _: Any) -> None:
            pass

        def choose(self, _backend: Any, _logits: Any) -> int:
            return next(tokens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Sampler", Scripted)
        for _ in session.ask(question.prompt):
            pass
    assert next(tokens, None) is None


@pytest.mark.parametrize("seed", [0, 1, 2, 7])
def test_a_stream_is_what_a_session_lays_out(
    seed: int, tiny_row: Callable[..., Any], session: Callable[[], Any]
) -> None:
    row, (script,) = tiny_row(seed, (4,))
    inline = [question for question in script.questions if question.inline]
    live = session()
    cells = _follow(live, script, 3, inline)
    live._run(live._return_to_user)
    cells = live.cache.history.cells
    stream = row.branch == 0
    np.testing.assert_array_equal(row.ids[stream], cells["token"])
    np.testing.assert_array_equal(row.positions[:, stream], cells["position"].T)
    places = np.flatnonzero(stream)
    for modality, found in (
        (Modality.IMAGE, row.picture_places),
        (Modality.AUDIO, row.sound_places),
    ):
        want = places[cells["modality"] == modality]
        np.testing.assert_array_equal(found[:4].ravel(), want)
        assert (found[4:] == len(row.ids)).all()


@pytest.mark.parametrize("seed", [0, 3])
def test_a_branch_is_what_a_session_lays_out_when_asked_then(
    seed: int, tiny_row: Callable[..., Any], session: Callable[[], Any]
) -> None:
    row, (script,) = tiny_row(seed, (3,))
    inline = [question for question in script.questions if question.inline]
    branches = list(_branches(row))
    asked = [question for question in script.questions if not question.inline]
    assert len(branches) == len(asked) >= 4
    for question, places in list(zip(asked, branches, strict=True))[::3]:
        live = session()
        before = [other for other in inline if other.after < question.after]
        _follow(live, script, question.after, before)
        _answer(live, question)
        end = len(live.cache.history.cells) - len(live.model._template._reply_close) + 1
        cells = live.cache.history.cells[end - len(places) - 1 : end - 1]
        np.testing.assert_array_equal(row.ids[places], cells["token"])
        np.testing.assert_array_equal(row.positions[:, places], cells["position"].T)
        assert row.seen[places[0]] == end - len(places) - 1


def _branches(row: Any) -> Iterator[Any]:
    for branch in range(1, int(row.branch.max()) + 1):
        yield np.flatnonzero(row.branch == branch)


@pytest.mark.parametrize("seed", [0, 1])
def test_labels_are_the_answers(seed: int, tiny_row: Callable[..., Any], writer: Any) -> None:
    from training.world.questions.wordings import TASKS

    row, scripts = tiny_row(seed, (3,))
    told = []
    for script in scripts:
        for inline in (True, False):
            told += [q for q in script.questions if q.inline == inline]
    assert (row.answer_tasks >= 0).sum() == len(told)
    for number, question in enumerate(told):
        chosen = (row.label_answers == number) & (row.label_weights > 0)
        ids = row.label_ids[chosen]
        assert ids.tolist() == writer.answer(question.answer).ids.tolist()
        assert ids[-1] == writer.end
        places = row.label_places[chosen]
        # Every label but a branch's last one is the token that follows.
        inner = places[:-1]
        np.testing.assert_array_equal(row.ids[inner + 1], ids[:-1])
        np.testing.assert_allclose(row.label_weights[chosen], len(ids) ** -0.5)
        assert TASKS[row.answer_tasks[number]] == question.task
        assert row.answer_distances[number] == question.distance


def _sees(row: Any, query: int, key: int, forgetting: Any) -> bool:
    """The definition, in words of document, branch, unit and kept."""
    if row.document[query] != row.document[key] or row.document[query] < 0:
        return query == key
    if row.branch[key] == row.branch[query]:
        if key > query:
            return False
        if row.branch[key] > 0:
            return True
    elif row.branch[key] > 0 or key >= row.seen[query]:
        return False
    if forgetting is None or row.unit[key] < 0:
        return True
    return bool(row.kept[key]) or row.unit[key] > row.unit[query] - forgetting.recent


@pytest.mark.parametrize("sink", [None, 0, 3])
@pytest.mark.parametrize("recent", [1, 2])
def test_who_sees_whom(sink: int | None, recent: int, tiny_row: Callable[..., Any]) -> None:
    from training.rows.batch import collate
    from training.rows.row import Forgetting

    forgetting = None if sink is None else Forgetting(recent, sink)
    row, _ = tiny_row(11, (3, 1), forgetting)
    mask = collate([row]).visibility.dense()[0, 0].numpy()
    tokens = len(row.ids)
    want = np.array(
        [[_sees(row, query, key, forgetting) for key in range(tokens)] for query in range(tokens)]
    )
    np.testing.assert_array_equal(mask, want)


@pytest.mark.parametrize("sink", [0, 5])
def test_kept_are_text_and_the_first_tokens_of_each_span(
    sink: int, tiny_row: Callable[..., Any], session: Callable[[], Any]
) -> None:
    from training.rows.row import Forgetting

    row, (script,) = tiny_row(2, (2,), Forgetting(2, sink))
    live = session()
    cells = _follow(live, script, 1, [q for q in script.questions if q.inline])
    stream = np.flatnonzero(row.branch == 0)[: len(cells)]
    want = (cells["modality"] == Modality.TEXT) | (span_ranks(cells) < sink)
    np.testing.assert_array_equal(row.kept[stream], want)
    assert row.kept[row.branch != 0].all()


@pytest.mark.parametrize("sink", [0, 4, 8])
def test_kept_are_what_omnipick_keeps_of_older_units(
    sink: int, tiny_row: Callable[..., Any], session: Callable[[], Any]
) -> None:
    """What training calls dropped is what the policy drops."""
    from training.rows.row import Forgetting

    row, (script,) = tiny_row(2, (3,), Forgetting(1, sink))
    live = session()
    cells = _follow(live, script, 2, [q for q in script.questions if q.inline])
    config = RetentionConfig(
        high_watermark=5000,
        low_watermark=5000,
        recent_units=1,
        image_sink=sink,
        audio_sink=sink,
        text_budget=5000,
    )
    keep = OmniPick().select(live.cache.history, config)
    older = cells["unit"] != cells["unit"][-1]
    assert not keep[older].all()
    assert np.count_nonzero(cells["modality"][older] == Modality.AUDIO) >= 100
    stream = np.flatnonzero(row.branch == 0)[: len(cells)]
    np.testing.assert_array_equal(row.kept[stream][older], keep[older])


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({}, "units"),
        ({"row_units": 7, "row_tokens": 640}, "tokens"),
        ({"row_units": 7, "row_labels": 1}, "labels"),
        ({"row_units": 7, "row_answers": 0}, "answers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_changes_nothing(
    limits: dict[str, int], why: str, tiny_settings: Any, writer: Any
) -> None:
    from training.rows.builder import RowBuilder
    from training.world.scenario import draw_script
    from training.world.script import Question

    random = np.random.default_rng(0)
    builder = RowBuilder(replace(tiny_settings, **limits), writer)
    plain = [draw_script(random, units, "train", 0) for units in (5, 2)]
    if why in ("labels", "answers"):
        asked = Question(0, "see", "Which shape do you see now?", "red circle", 0, True)
        plain[1] = replace(plain[1], questions=(asked,))
    assert builder.add(plain[0], random)
    before = builder.build()
    document = before.document.copy()
    assert before.num_units == 5
    assert not builder.add(plain[1], random)
    after = builder.build()
    assert (before.num_units, before.num_tokens) == (after.num_units, after.num_tokens)
    np.testing.assert_array_equal(document, after.document)
    # It is this limit alone that leaves it out.
    roomy = RowBuilder(replace(tiny_settings, row_units=7), writer)
    assert roomy.add(plain[0], random)
    assert roomy.add(plain[1], random)


def test_branches_leave_room_for_later_streams(tiny_settings: Any, writer: Any) -> None:
    from training.rows.builder import RowBuilder
    from training.world.scenario import draw_script

    for last in (False, True):
        random = np.random.default_rng(0)
        builder = RowBuilder(tiny_settings, writer)
        assert builder.add(draw_script(random, 3, "train", 60), random, None, last)
        share = tiny_settings.row_tokens // 2
        row = builder.build()
        assert (row.num_tokens <= share) is not last
        assert row.num_tokens > share - 40
        asked = row.unit[row.branch > 0]
        assert (np.diff(asked) >= 0).all()
        assert not last or set(asked.tolist()) == {0, 1, 2}
