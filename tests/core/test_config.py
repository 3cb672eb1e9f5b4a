"""Options: each refusal with its message, defaults, and what a family changes."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from omnitide.config import (
    FamilyDefaults,
    MediaOptions,
    RetentionConfig,
    SamplingConfig,
    family_retention,
)
from omnitide.errors import ConfigError, OmnitideError

NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (
            RetentionConfig,
            {"high_watermark": 0, "low_watermark": 0},
            r"\[retention\] high_watermark must be at least 1, got 0",
        ),
        (
            RetentionConfig,
            {"low_watermark": 0},
            r"\[retention\] low_watermark must be at least 1, got 0",
        ),
        (
            RetentionConfig,
            {"recent_units": 0},
            r"\[retention\] recent_units must be at least 1, got 0",
        ),
        (
            RetentionConfig,
            {"image_sink": -1},
            r"\[retention\] image_sink must be at least 0, got -1",
        ),
        (
            RetentionConfig,
            {"audio_sink": -3},
            r"\[retention\] audio_sink must be at least 0, got -3",
        ),
        (
            RetentionConfig,
            {"text_budget": -12345678},
            r"\[retention\] text_budget must be at least 0, got -12345678$",
        ),
        (
            RetentionConfig,
            {"recent_share": 0.0},
            r"\[retention\] recent_share must be in \(0, 1\], got 0",
        ),
        (
            RetentionConfig,
            {"recent_share": 1.01},
            r"\[retention\] recent_share must be in \(0, 1\], got 1.01",
        ),
        (
            RetentionConfig,
            {"recent_share": NAN},
            r"\[retention\] recent_share must be in \(0, 1\], got nan",
        ),
        (
            RetentionConfig,
            {"sink_tokens": -1},
            r"\[retention\] sink_tokens must be at least 0, got -1",
        ),
        (
            RetentionConfig,
            {"text_sink": -2},
            r"\[retention\] text_sink must be at least 0, got -2",
        ),
        (
            RetentionConfig,
            {"text_window": -3},
            r"\[retention\] text_window must be at least 0, got -3",
        ),
        (
            RetentionConfig,
            {"vision_window": -0.5},
            r"\[retention\] vision_window must be at least 0, got -0.5",
        ),
        (
            RetentionConfig,
            {"vision_window": NAN},
            r"\[retention\] vision_window must be at least 0, got nan",
        ),
        *(
            (
                RetentionConfig,
                {"heavy_share": share},
                r"\[retention\] heavy_share must be in \[0, 1\), so that the newest tokens have "
                rf"room; got {share}",
            )
            for share in (-0.1, 1.0, NAN)
        ),
        (
            RetentionConfig,
            {"high_watermark": 1799},
            r"low watermark 1,800 is above the high watermark 1,799; lower --low-watermark or "
            r"raise --high-watermark",
        ),
        (MediaOptions, {"fps": 0.0}, r"\[media\] fps must be in \(0, 240\], got 0"),
        (MediaOptions, {"fps": 240.5}, r"\[media\] fps must be in \(0, 240\], got 240.5"),
        (MediaOptions, {"fps": NAN}, r"\[media\] fps must be in \(0, 240\], got nan"),
        (
            MediaOptions,
            {"chunk_seconds": 61.0},
            r"\[media\] chunk_seconds must be in \(0, 60\], got 61",
        ),
        (
            MediaOptions,
            {"max_pixels": 783},
            r"\[media\] max_pixels must be at least 784, got 783",
        ),
        (
            SamplingConfig,
            {"temperature": -0.5},
            r"\[sampling\] temperature must be at least 0, got -0.5",
        ),
        (
            SamplingConfig,
            {"temperature": NAN},
            r"\[sampling\] temperature must be at least 0, got nan",
        ),
        (SamplingConfig, {"top_p": 0.0}, r"\[sampling\] top_p must be in \(0, 1\], got 0"),
        (SamplingConfig, {"top_p": 1.5}, r"\[sampling\] top_p must be in \(0, 1\], got 1.5"),
        (SamplingConfig, {"min_p": -0.1}, r"\[sampling\] min_p must be in \[0, 1\], got -0.1"),
        (SamplingConfig, {"min_p": 1.1}, r"\[sampling\] min_p must be in \[0, 1\], got 1.1"),
        (SamplingConfig, {"top_k": -1}, r"\[sampling\] top_k must be at least 0, got -1"),
        (SamplingConfig, {"seed": -1}, r"\[sampling\] seed must be at least 0, got -1"),
    ],
)
def test_refusals(kind: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        kind(**given)
    assert isinstance(refused.value, OmnitideError)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (
            RetentionConfig,
            {
                "high_watermark": 1,
                "low_watermark": 1,
                "recent_units": 1,
                "image_sink": 0,
                "audio_sink": 0,
                "text_budget": 0,
                "recent_share": 1.0,
                "sink_tokens": 0,
                "heavy_share": 0.0,
                "text_sink": 0,
                "text_window": 0,
                "vision_window": 0.0,
            },
        ),
        (MediaOptions, {"fps": 240.0, "chunk_seconds": 60.0, "max_pixels": 784}),
        (SamplingConfig, {"temperature": 0, "top_p": 1.0, "top_k": 0, "min_p": 1.0, "seed": 0}),
    ],
)
def test_the_bounds_themselves_are_allowed(kind: Any, given: dict[str, Any]) -> None:
    options = kind(**given)
    assert {name: getattr(options, name) for name in given} == given
    with pytest.raises(FrozenInstanceError):
        setattr(options, next(iter(given)), 5)


def test_the_watermarks_of_the_paper_are_the_defaults() -> None:
    config = RetentionConfig()
    assert (config.high_watermark, config.low_watermark) == (2500, 1800)
    assert config.recent_units is None
    assert config.sink_tokens == 2


def test_the_windows_of_streaming_vlm_are_the_defaults() -> None:
    config = RetentionConfig()
    assert (config.text_sink, config.text_window, config.vision_window) == (512, 512, 16.0)


def test_a_family_sets_what_the_user_leaves_open() -> None:
    family = FamilyDefaults(image_sink=3, audio_sink=5, text_budget=70, recent_share=0.5)
    assert family_retention(family) == RetentionConfig(
        image_sink=3, audio_sink=5, text_budget=70, recent_share=0.5
    )
    given = family_retention(
        family, image_sink=0, text_budget=None, low_watermark=100, high_watermark=200
    )
    assert given == RetentionConfig(
        high_watermark=200,
        low_watermark=100,
        image_sink=0,
        audio_sink=5,
        text_budget=70,
        recent_share=0.5,
    )


@pytest.mark.parametrize(("high", "low"), [(1000, 720), (1, 1), (2500, 1800), (9000, 1800)])
def test_a_high_watermark_alone_takes_the_low_one_down(high: int, low: int) -> None:
    config = family_retention(FamilyDefaults(), high_watermark=high)
    assert (config.high_watermark, config.low_watermark) == (high, low)


def test_what_the_user_gives_a_family_is_checked() -> None:
    with pytest.raises(ConfigError, match="low watermark 901 is above the high watermark 900"):
        family_retention(FamilyDefaults(), high_watermark=900, low_watermark=901)
    with pytest.raises(ConfigError, match="low watermark 2,600 is above the high watermark 2,500"):
        family_retention(FamilyDefaults(), low_watermark=2600)
    with pytest.raises(TypeError, match="watermark"):
        family_retention(FamilyDefaults(), watermark=900)


@pytest.mark.parametrize("options", [{"fps": 1e-7}, {"chunk_seconds": 1e-7}])
def test_media_rates_below_what_is_counted_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"must be at least 0\.001"):
        MediaOptions(**options)
