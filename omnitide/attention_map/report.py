"""The numbers of an attention map: where attention goes, by class, distance, layer and head."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from omnitide.attention_map import patterns
from omnitide.attention_map.classes import (
    AUDIO,
    BOUNDARY,
    IMAGE,
    PREFIX,
    RANKS,
    SOURCE,
    TEXT,
    audio_classes,
    image_classes,
)
from omnitide.attention_map.patterns import Head
from omnitide.attention_map.shares import DISTANCES, Shares
from omnitide.attention_map.stream import StreamSizes
from omnitide.attention_map.suggestions import Suggestion, rank_times, suggest
from omnitide.attention_map.watch import AttentionWatch
from omnitide.config import RetentionConfig

MODALITIES: dict[str, list[int]] = {
    "boundary": [BOUNDARY],
    "text": [TEXT],
    "picture": [SOURCE, *image_classes()],
    "sound": audio_classes(),
}
"""Classes of each modality; boundaries apart, as everywhere."""

BACK = ((0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, 63), (64, DISTANCES - 1))
"""Rows of the table by distance: first and last units back."""


@dataclass(frozen=True, slots=True)
class Share:
    """Attention that some tokens get, mean over layers and heads.

    Attributes:
        name: Which tokens.
        share: Share of all attention.
        even: Share that they would get if every query attended evenly to all that it sees.
    """

    name: str
    share: float
    even: float

    @property
    def times(self) -> float | None:
        """How many times as much as under even attention; None where there is no such token."""
        return self.share / self.even if self.even > 0 else None


@dataclass(frozen=True, slots=True)
class Distance:
    """Attention by distance.

    Attributes:
        back: First and last units back, 0 the query's own.
        all: To all tokens there, the prefix apart.
        parts: By modality, in the order of `MODALITIES`.
    """

    back: tuple[int, int]
    all: Share
    parts: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A layer, mean over its heads, or one head.

    Attributes:
        layer, head: Numbers; no head for a layer.
        sinks: Share on boundaries and sinks of other units.
        recent: Share on the own unit and the one before.
        prefix, boundary, text, picture, sound: Shares.
        asymmetry: How many times as much a token of sound gets as one of a picture, if there are.
    """

    layer: int
    head: int | None
    sinks: float
    recent: float
    prefix: float
    boundary: float
    text: float
    picture: float
    sound: float
    asymmetry: float | None


@dataclass(frozen=True, slots=True)
class AttentionReport:
    """Everything but the picture.

    Attributes:
        model, policy: Names.
        trained: Whether the weights are trained.
        sizes: Of the stream.
        queries: Queries looked at in each layer.
        num_heads: Of each layer.
        image_sink, audio_sink: Sink lengths that the tables use.
        where: By class.
        distances: By distance.
        image_ranks, audio_ranks: What the first tokens of a span get in other units, as times even
            attention; the last one for all behind. None: no such token.
        layers, heads: Rows of the layers looked at, and of all their heads.
        strongest: The heads that show each pattern most.
        suggestions: For OmniPick.
        broken: Why the stream was not followed to its end, or None.
    """

    model: str
    policy: str
    trained: bool
    sizes: StreamSizes
    queries: int
    num_heads: int
    image_sink: int
    audio_sink: int
    where: tuple[Share, ...]
    distances: tuple[Distance, ...]
    image_ranks: tuple[float | None, ...]
    audio_ranks: tuple[float | None, ...]
    layers: tuple[Row, ...]
    heads: tuple[Row, ...]
    strongest: tuple[Head, ...]
    suggestions: tuple[Suggestion, ...]
    broken: str | None = None

    def as_json(self) -> str:
        """One JSON object."""
        return json.dumps(_plain(self), indent=2, allow_nan=False)


def make_report(
    watch: AttentionWatch,
    config: RetentionConfig,
    *,
    model: str,
    policy: str,
    trained: bool,
    cut: bool,
    broken: str | None = None,
) -> AttentionReport:
    """Read off all numbers.

    Args:
        watch: After the stream.
        config: The retention in force: its sink lengths are those of the tables.
        model, policy, trained, broken: As in `AttentionReport`.
        cut: Whether the policy cut the history.
    """
    shares, sizes = watch.shares, StreamSizes.of(watch)
    return AttentionReport(
        model=model,
        policy=policy,
        trained=trained,
        sizes=sizes,
        queries=int(shares.queries.max()),
        num_heads=shares.received.shape[1],
        image_sink=min(config.image_sink, RANKS),
        audio_sink=min(config.audio_sink, RANKS),
        where=tuple(_where(shares, config)),
        distances=tuple(_distances(shares)),
        image_ranks=_numbers(rank_times(shares, IMAGE)),
        audio_ranks=_numbers(rank_times(shares, AUDIO)),
        layers=tuple(_rows(shares, watch.layers, config, by_head=False)),
        heads=tuple(_rows(shares, watch.layers, config, by_head=True)),
        strongest=patterns.strongest(shares, watch.layers, config),
        suggestions=suggest(shares, sizes, config, cut),
        broken=broken,
    )


def _where(shares: Shares, config: RetentionConfig) -> Iterator[Share]:
    image, audio = min(config.image_sink, RANKS), min(config.audio_sink, RANKS)
    for name, classes in (
        ("system prefix", [PREFIX]),
        ("boundary tokens", [BOUNDARY]),
        ("text", [TEXT]),
        ("source images", [SOURCE]),
        (f"first {image} tokens of a picture span", image_classes(0, image)),
        ("rest of pictures", image_classes(image)),
        (f"first {audio} tokens of a sound span", audio_classes(0, audio)),
        ("rest of sound", audio_classes(audio)),
    ):
        yield _share(shares, name, classes)


def _distances(shares: Shares) -> Iterator[Distance]:
    behind = [c for c in range(shares.even.shape[2]) if c != PREFIX]
    for first, last in BACK:
        at = slice(first, last + 1)
        whole = _share(shares, "all", behind, at)
        if whole.even > 0:
            parts = tuple(_share(shares, name, c, at) for name, c in MODALITIES.items())
            yield Distance((first, last), whole, parts)


def _rows(
    shares: Shares, layers: list[int], config: RetentionConfig, by_head: bool
) -> Iterator[Row]:
    columns = {
        "sinks": patterns.sinks(shares, config),
        "recent": patterns.recent(shares),
        "prefix": shares.of([PREFIX])[0],
        **{name: shares.of(classes)[0] for name, classes in MODALITIES.items()},
    }
    uneven = patterns.asymmetry(shares)
    for index, layer in enumerate(layers):
        if by_head:
            for head, ratio in enumerate(uneven[index]):
                values = {name: float(column[index, head]) for name, column in columns.items()}
                yield Row(layer, head, asymmetry=_number(ratio), **values)
        else:
            values = {name: float(column[index].mean()) for name, column in columns.items()}
            logs = np.log(uneven[index])
            ratio = None if np.isnan(logs).any() else float(np.exp(logs.mean()))
            yield Row(layer, None, asymmetry=ratio, **values)


def _share(
    shares: Shares, name: str, classes: Iterable[int], distances: slice = slice(None)
) -> Share:
    received, even = shares.of(classes, distances)
    return Share(name, float(received.mean()), float(even.mean()))


def _numbers(values: Iterable[float]) -> tuple[float | None, ...]:
    return tuple(_number(value) for value in values)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _plain(report: AttentionReport) -> dict[str, Any]:
    data = asdict(report)
    for row, share in zip(data["where"], report.where, strict=True):
        row["times"] = share.times
    for row, distance in zip(data["distances"], report.distances, strict=True):
        row["all"]["times"] = distance.all.times
        for part, share in zip(row["parts"], distance.parts, strict=True):
            part["times"] = share.times
    return data
