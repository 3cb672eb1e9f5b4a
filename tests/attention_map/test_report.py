"""Tables, patterns and suggestions on attention made by hand, with values worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omnitide import RetentionConfig, Session
from omnitide.attention_map import patterns
from omnitide.attention_map.classes import (
    AUDIO,
    BOUNDARY,
    IMAGE,
    PREFIX,
    RANKS,
    TEXT,
    audio_classes,
    image_classes,
)
from omnitide.attention_map.picture import contents_of
from omnitide.attention_map.report import make_report
from omnitide.attention_map.shares import Shares
from omnitide.attention_map.stream import StreamSizes
from omnitide.attention_map.suggestions import Suggestion, suggest
from omnitide.attention_map.watch import AttentionWatch
from omnitide.cli.attention_table import lines
from omnitide.media.chunk import MediaChunk

CONFIG = RetentionConfig(image_sink=2, audio_sink=1, recent_share=0.5)
SIZES = StreamSizes(prefix=10, tokens=400, units=10, text=70)


def one_query(**parts: tuple[int, int, float, float]) -> Shares:
    """One layer, one head, one query: parts (units back, class, attention, even attention)."""
    shares = Shares(1, 1)
    for back, kind, received, even in parts.values():
        shares.received[0, 0, back, kind] += received
        shares.even[0, back, kind] += even
    shares.queries[:] = 1
    return shares


def test_classes_of_a_modality() -> None:
    assert image_classes() == list(range(IMAGE, IMAGE + RANKS + 1))
    assert image_classes(0, 2) == [IMAGE, IMAGE + 1]
    assert audio_classes(3) == list(range(AUDIO + 3, AUDIO + RANKS + 1))
    # A sink longer than what is told apart takes all that is, and leaves the rest.
    assert image_classes(99) == [IMAGE + RANKS]
    assert len({PREFIX, BOUNDARY, TEXT, *image_classes(), *audio_classes()}) == 3 + 2 * (RANKS + 1)


def test_attention_is_shared_out_by_place_and_class() -> None:
    """Two queries over four cells: the first sees three of them, the second all."""
    shares = Shares(2, 2)
    weights = np.array(
        [[[0.5, 0.25, 0.25, 0.0], [0.1, 0.2, 0.3, 0.4]], [[1.0, 0, 0, 0], [0, 0, 0, 1.0]]]
    )
    classes = np.array([PREFIX, IMAGE, IMAGE, TEXT], np.uint8)
    shares.add(1, weights, np.array([3, 4]), classes, np.array([90, 1, 1, 0]))
    assert not shares.received[0].any()
    assert shares.received[1, :, 64, PREFIX] == pytest.approx([0.6, 1.0])
    assert shares.received[1, :, 1, IMAGE] == pytest.approx([1.0, 0.0])
    assert shares.received[1, :, 0, TEXT] == pytest.approx([0.4, 1.0])
    assert shares.even[1, 64, PREFIX] == pytest.approx(1 / 3 + 1 / 4)
    assert shares.even[1, 1, IMAGE] == pytest.approx(2 / 3 + 2 / 4)
    assert shares.even[1, 0, TEXT] == pytest.approx(1 / 4)
    received, even = shares.of([IMAGE, TEXT], slice(0, 2))
    assert received.tolist() == [[0, 0], [pytest.approx(0.7), pytest.approx(0.5)]]
    assert even.tolist() == [0, pytest.approx((2 / 3 + 2 / 4 + 1 / 4) / 2)]


def test_patterns_by_hand() -> None:
    shares = one_query(
        own=(0, BOUNDARY, 0.05, 0.05),
        before=(1, BOUNDARY, 0.10, 0.05),
        sink=(2, IMAGE + 1, 0.15, 0.05),
        behind=(2, IMAGE + 2, 0.20, 0.25),
        sound=(3, AUDIO, 0.30, 0.10),
        late=(3, AUDIO + 1, 0.20, 0.50),
    )
    # Boundaries of other units, the first two of a picture, the first one of sound.
    assert patterns.sinks(shares, CONFIG).tolist() == [[pytest.approx(0.10 + 0.15 + 0.30)]]
    assert patterns.recent(shares).tolist() == [[pytest.approx(0.15)]]
    ratio = (0.50 / 0.60) / (0.35 / 0.30)
    assert patterns.asymmetry(shares).tolist() == [[pytest.approx(ratio)]]


def test_the_strongest_head_of_each_pattern() -> None:
    """Head 1 of layer 7 has the sinks; head 0 of layer 4 the recent units and uneven modalities."""
    shares = Shares(2, 2)
    shares.queries[:] = 1
    shares.even[:, 3, [BOUNDARY, IMAGE, AUDIO]] = [0.2, 0.4, 0.4]
    shares.received[:, :, 3, IMAGE] = [[0.6, 0.3], [0.4, 0.2]]
    shares.received[:, :, 3, AUDIO] = [[0.1, 0.3], [0.4, 0.2]]
    shares.received[:, :, 3, BOUNDARY] = [[0.1, 0.4], [0.2, 0.6]]
    shares.received[:, :, 1, TEXT] = [[0.2, 0.0], [0.0, 0.0]]
    none = RetentionConfig(image_sink=0, audio_sink=0)
    sinks, recent, modality = patterns.strongest(shares, [4, 7], none)
    assert (sinks.pattern, sinks.layer, sinks.head) == ("sinks", 7, 1)
    assert sinks.value == pytest.approx(0.6)
    assert (recent.layer, recent.head, recent.value) == (4, 0, pytest.approx(0.2))
    assert (modality.layer, modality.head) == (4, 0)
    assert modality.value == pytest.approx(1 / 6)
    deaf = Shares(2, 2)
    assert [head.pattern for head in patterns.strongest(deaf, [4, 7], none)] == ["sinks", "recent"]


def by_option(found: tuple[Suggestion, ...]) -> dict[str, int | None]:
    return {suggestion.option: suggestion.value for suggestion in found}


def test_suggestions_by_hand() -> None:
    """Pictures: 0.36 on an even 0.36, so 2 is high enough. Ranks 0 to 2 reach it, 3 does not.

    Sound: 0.20 on 0.40, an average of 0.5. Rank 0 gets 0.8. Beside prefix, boundaries and the
    three sinks, 0.5 of attention is left: own unit 0.30, 1 back 0.10, 2 back 0.06, 3 back 0.04. So
    90 % is reached with three units. Of 40 tokens each, with the prefix 130; twice that is 260.
    """
    shares = one_query(
        prefix=(3, PREFIX, 0.10, 0.05),
        boundary=(2, BOUNDARY, 0.18, 0.05),
        first=(1, IMAGE, 0.08, 0.02),
        second=(2, IMAGE + 1, 0.08, 0.03),
        third=(2, IMAGE + 2, 0.06, 0.03),
        fourth=(2, IMAGE + 3, 0.02, 0.011),
        fifth=(2, IMAGE + 4, 0.02, 0.009),
        rest=(1, IMAGE + RANKS, 0.10, 0.26),
        sound=(2, AUDIO, 0.02, 0.025),
        own=(0, AUDIO + 1, 0.30, 0.14),
        more=(3, AUDIO + 1, 0.04, 0.015),
        far=(3, AUDIO + RANKS, 0.00, 0.08),
    )
    found = by_option(suggest(shares, SIZES, CONFIG, cut=False))
    assert found == {
        "--image-sink": 3,
        "--audio-sink": 0,
        "--recent-units": 3,
        "--low-watermark": 320,
        "--high-watermark": 448,
        "--text-budget": None,
    }


@pytest.mark.parametrize(
    ("parts", "option", "value", "why"),
    [
        ({"a": (0, IMAGE, 1.0, 1.0)}, "--image-sink", None, "no older unit has a picture"),
        ({"a": (1, TEXT, 0.3, 0.2)}, "--text-budget", 128, "gets 1.5 times even attention"),
        ({"a": (1, TEXT, 0.1, 0.2)}, "--text-budget", 0, "gets 0.5 times even attention"),
        ({"a": (0, TEXT, 0.1, 0.2)}, "--text-budget", None, "ask questions on the way"),
        ({"a": (64, TEXT, 1.0, 1.0)}, "--recent-units", None, "reaches back beyond 64 units"),
        ({"a": (63, TEXT, 1.0, 1.0)}, "--recent-units", 64, "so many newest units get 90%"),
        ({"a": (1, PREFIX, 1.0, 1.0)}, "--recent-units", None, "no attention was seen"),
    ],
)
def test_what_a_stream_says_nothing_of(
    parts: Any, option: str, value: int | None, why: str
) -> None:
    found = suggest(one_query(**parts), SIZES, CONFIG, cut=False)
    (chosen,) = (suggestion for suggestion in found if suggestion.option == option)
    assert chosen.value == value
    assert why in chosen.why


def test_a_sink_is_as_long_as_what_is_told_apart_at_most() -> None:
    parts = {f"r{rank}": (1, AUDIO + rank, 0.03, 0.001) for rank in range(RANKS)}
    shares = one_query(**parts, rest=(1, AUDIO + RANKS, 0.04, 0.968))
    assert by_option(suggest(shares, SIZES, CONFIG, cut=False))["--audio-sink"] == RANKS


def test_a_cut_history_says_nothing_of_recent_units() -> None:
    shares = one_query(a=(0, TEXT, 1.0, 1.0))
    found = suggest(shares, SIZES, CONFIG, cut=True)
    assert "--low-watermark" not in by_option(found)
    assert found[2] == Suggestion(
        "--recent-units", None, "the policy cut the history; run with --policy full"
    )


def test_a_report_of_a_stream(
    watched: Callable[..., tuple[Session, AttentionWatch]], chunk: Callable[..., MediaChunk]
) -> None:
    """What must add up does, and JSON and tables hold it."""
    session, watch = watched()
    for index in range(4):
        session.append_media(chunk(index))
    list(session.ask("What?", max_tokens=2))
    report = make_report(
        watch, session.retention, model="tiny", policy="full", trained=False, cut=False
    )
    history = session.cache.history
    assert report.sizes.prefix + report.sizes.tokens == len(history)
    assert report.sizes.units == len(history.units) - 1
    assert sum(share.share for share in report.where) == pytest.approx(1, rel=1e-5)
    assert sum(share.even for share in report.where) == pytest.approx(1)
    beside = sum(distance.all.share for distance in report.distances)
    assert beside == pytest.approx(1 - report.where[0].share, rel=1e-5)
    for distance in report.distances:
        assert sum(part.share for part in distance.parts) == pytest.approx(distance.all.share)
    assert [(row.layer, row.head) for row in report.heads] == [
        (layer, head) for layer in range(3) for head in range(2)
    ]
    for row in report.layers:
        heads = [one for one in report.heads if one.layer == row.layer]
        assert row.sinks == pytest.approx(np.mean([one.sinks for one in heads]))
        assert row.prefix + row.boundary + row.text + row.picture + row.sound == pytest.approx(1)
    best = max(report.heads, key=lambda row: row.recent)
    assert (report.strongest[1].layer, report.strongest[1].head) == (best.layer, best.head)

    data = json.loads(report.as_json())
    assert data["where"][1]["name"] == "boundary tokens"
    assert data["where"][1]["times"] == pytest.approx(report.where[1].times)
    assert data["where"][3] == {"name": "source images", "share": 0, "even": 0, "times": None}
    assert len(data["image_ranks"]) == RANKS + 1
    assert data["image_ranks"][RANKS] is None  # pictures of 56 pixels have 4 tokens
    text = "\n".join(lines(report))
    assert "tiny (untrained, random weights: the numbers mean nothing), policy full" in text
    assert f"{report.where[1].share:.1%}" in text
    assert f"--image-sink {report.suggestions[0].value}: " in text


def test_a_bin_of_the_strip_is_what_most_of_its_tokens_are() -> None:
    classes = np.array([PREFIX, TEXT, BOUNDARY, AUDIO, AUDIO + 9, BOUNDARY, IMAGE, IMAGE], np.uint8)
    assert contents_of(classes, 1).tolist() == [1, 1, 0, 2, 2, 0, 3, 3]
    assert contents_of(classes, 3).tolist() == [1, 2, 3]
