"""Sink lengths and budgets that a stream's attention speaks for.

Every rule is stated where it is applied and said with its result. They are read off one stream, so
they are a start for tuning on quality, not its result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
from omnitide.attention_map.patterns import PAST
from omnitide.attention_map.shares import DISTANCES, Shares
from omnitide.attention_map.stream import StreamSizes
from omnitide.config import RetentionConfig

SINK_TIMES = 2.0
"""A first token is a sink if it gets at least so many times what a token of its kind gets."""

RECENT_SHARE = 0.9
"""Share of the attention that goes to neither prefix, boundaries nor sinks, to keep whole."""

ROUND = 64
"""Budgets are rounded up to pages' worth of tokens."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An option of `omnitide generate`, and what speaks for it.

    Attributes:
        option: Its name, such as "--image-sink".
        value: Tokens or units; None where this stream says nothing.
        why: The reason, in words.
    """

    option: str
    value: int | None
    why: str


def suggest(
    shares: Shares, sizes: StreamSizes, config: RetentionConfig, cut: bool
) -> tuple[Suggestion, ...]:
    """Suggestions for OmniPick's parameters.

    Args:
        shares: What was seen.
        sizes: Of the stream.
        config: The retention in force, whose shares and proportions are kept.
        cut: Whether the policy cut the history; then nothing can be said of recent units.
    """
    image = _sink(shares, "--image-sink", "a picture", IMAGE, image_classes())
    audio = _sink(shares, "--audio-sink", "sound", AUDIO, audio_classes())
    window = _recent(shares, image.value or 0, audio.value or 0, sizes, cut)
    return (
        image,
        audio,
        window,
        *_marks(window, sizes, config),
        _text(shares, sizes),
    )


def rank_times(shares: Shares, first: int) -> NDArray[np.float64]:
    """What the first tokens of a modality's spans get in other units, as times even attention.

    Args:
        shares: What was seen.
        first: `IMAGE` or `AUDIO`.

    Returns:
        Shape (RANKS + 1,), the last one for all tokens behind; NaN where there is no such token.
    """
    received = shares.received[:, :, PAST, first : first + RANKS + 1].sum(axis=2).mean(axis=1)
    even = shares.even[:, PAST, first : first + RANKS + 1].sum(axis=1)
    return _times(received.sum(axis=0), even.sum(axis=0))


def _times(received: NDArray[np.float64], even: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(received, even, out=np.full_like(even, np.nan), where=even > 0)


def _sink(shares: Shares, option: str, what: str, first: int, classes: list[int]) -> Suggestion:
    received, even = (part.mean() for part in shares.of(classes, PAST))
    if not even > 0:
        return Suggestion(option, None, f"no older unit has {what}")
    average = received / even
    ranks = rank_times(shares, first)[:RANKS]
    high = ranks >= SINK_TIMES * average
    length = int(np.argmin(high)) if not high.all() else RANKS
    times = f"{SINK_TIMES:g} times what an average token of {what} in older units gets"
    if length == 0:
        return Suggestion(option, 0, f"the first one gets less than {times}")
    return Suggestion(option, length, f"each of the first {length} gets at least {times}")


def _recent(
    shares: Shares, image_sink: int, audio_sink: int, sizes: StreamSizes, cut: bool
) -> Suggestion:
    option = "--recent-units"
    if cut:
        return Suggestion(option, None, "the policy cut the history; run with --policy full")
    apart = {PREFIX, BOUNDARY, *image_classes(0, image_sink), *audio_classes(0, audio_sink)}
    rest = [c for c in range(shares.even.shape[2]) if c not in apart]
    by_distance = shares.received[..., rest].sum(axis=3).mean(axis=1).sum(axis=0)
    total = by_distance.sum()
    if not total > 0:
        return Suggestion(option, None, "no attention was seen")
    reached = by_distance.cumsum() / total >= RECENT_SHARE
    units = int(np.argmax(reached)) + 1
    if units >= DISTANCES:
        return Suggestion(option, None, f"attention reaches back beyond {DISTANCES - 1} units")
    return Suggestion(
        option,
        units,
        f"so many newest units get {RECENT_SHARE:.0%} of the attention that goes to neither "
        f"prefix, boundaries nor sinks; the stream has {sizes.units}",
    )


def _marks(
    window: Suggestion, sizes: StreamSizes, config: RetentionConfig
) -> tuple[Suggestion, ...]:
    if window.value is None or not sizes.units:
        return ()
    tokens = math.ceil(window.value * sizes.tokens / sizes.units)
    low = _rounded((sizes.prefix + tokens) / config.recent_share)
    high = _rounded(low * config.high_watermark / config.low_watermark)
    share = f"{config.recent_share:.0%} of the low watermark"
    why = f"prefix and recent units, about {sizes.prefix + tokens:,} tokens, fill {share}"
    return (
        Suggestion("--low-watermark", low, why),
        Suggestion("--high-watermark", high, "in proportion to the watermarks in force"),
    )


def _text(shares: Shares, sizes: StreamSizes) -> Suggestion:
    option = "--text-budget"
    received, even = (part.mean() for part in shares.of([TEXT], PAST))
    if not even > 0:
        return Suggestion(option, None, "no older unit has text; ask questions on the way")
    times = received / even
    if times >= 1:
        why = f"a token of older text gets {times:.2g} times even attention, so all of it stays"
        return Suggestion(option, _rounded(sizes.text), why)
    return Suggestion(option, 0, f"a token of older text gets {times:.2g} times even attention")


def _rounded(tokens: float) -> int:
    return math.ceil(tokens / ROUND) * ROUND
