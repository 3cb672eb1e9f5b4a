"""Options of retention, media and sampling, validated where they are made.

Every default stands here once; the command line and the Python interface take theirs from here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from omnitide.costs import Costs
from omnitide.errors import ConfigError


def _at_least(group: str, least: float, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not value >= least:
            raise ConfigError(f"[{group}] {name} must be at least {least:g}, got {value}")


LEAST_MEDIA = 1e-3
"""Least frame rate, and least seconds of a chunk; both are rounded to millionths."""


SOUND_MEMORY = 10.0
"""See `MediaOptions.sound_memory`. Seconds."""


@dataclass(frozen=True, slots=True)
class FamilyDefaults:
    """What the paper leaves open and a model family decides. Tuned on quality, by family.

    Attributes:
        image_sink, audio_sink: Tokens kept of each image and audio span of an older unit.
        text_budget: Tokens of older text and replies that are kept.
        recent_share: Share of the low watermark that the recent window may fill.
        fps, chunk_seconds, max_pixels, min_pixels: Of the media reader and the picture encoder.
        system_prompt: Message used when the user gives none.
    """

    image_sink: int = 8
    audio_sink: int = 8
    text_budget: int = 256
    recent_share: float = 0.75
    fps: float = 2.0
    chunk_seconds: float = 2.0
    max_pixels: int = 448 * 448
    min_pixels: int = 56 * 56
    system_prompt: str = "You are a helpful assistant."

    def media(
        self,
        fps: float | None = None,
        chunk_seconds: float | None = None,
        max_pixels: int | None = None,
        sound_memory: float | None = None,
    ) -> MediaOptions:
        """How a stream is cut for this family, with what the user gave in its place."""
        return MediaOptions(
            self.fps if fps is None else fps,
            self.chunk_seconds if chunk_seconds is None else chunk_seconds,
            self.max_pixels if max_pixels is None else max_pixels,
            SOUND_MEMORY if sound_memory is None else sound_memory,
        )


DEFAULTS = FamilyDefaults()


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """Parameters of the retention policies.

    Each policy reads what concerns it: the watermarks all, the next five fields OmniPick, then
    StreamingLLM, H2O, and the last three StreamingVLM.

    Attributes:
        high_watermark: A history above it is cut, between forward passes. Tokens.
        low_watermark: Target of the cut, not a bound. Tokens.
        recent_units: Newest units kept whole. None: as many as fit `recent_share` of the low
            watermark, and never fewer than one.
        image_sink, audio_sink: Tokens kept of each older image and audio span.
        text_budget: Tokens of older text and replies kept, oldest first.
        recent_share: See `recent_units`.
        sink_tokens: First tokens behind the system prefix that stay as attention sinks.
        heavy_share: Share of the room under the low watermark that heavy hitters fill; the newest
            tokens fill the rest.
        text_sink: First tokens of text that stay.
        text_window: Newest tokens of text that stay.
        vision_window: Newest seconds of picture and sound that stay.
    """

    high_watermark: int = 2500
    low_watermark: int = 1800
    recent_units: int | None = None
    image_sink: int = DEFAULTS.image_sink
    audio_sink: int = DEFAULTS.audio_sink
    text_budget: int = DEFAULTS.text_budget
    recent_share: float = DEFAULTS.recent_share
    sink_tokens: int = 2
    heavy_share: float = 0.5
    text_sink: int = 512
    text_window: int = 512
    vision_window: float = 16.0

    def __post_init__(self) -> None:
        _at_least("retention", 1, high_watermark=self.high_watermark)
        _at_least("retention", 1, low_watermark=self.low_watermark, recent_units=self.recent_units)
        _at_least(
            "retention",
            0,
            image_sink=self.image_sink,
            audio_sink=self.audio_sink,
            text_budget=self.text_budget,
            sink_tokens=self.sink_tokens,
            text_sink=self.text_sink,
            text_window=self.text_window,
            vision_window=self.vision_window,
        )
        if not 0 < self.recent_share <= 1:
            raise ConfigError(
                f"[retention] recent_share must be in (0, 1], got {self.recent_share}"
            )
        if not 0 <= self.heavy_share < 1:
            raise ConfigError(
                f"[retention] heavy_share must be in [0, 1), so that the newest tokens have room; "
                f"got {self.heavy_share}"
            )
        if self.low_watermark > self.high_watermark:
            raise ConfigError(
                f"[retention] low watermark {self.low_watermark:,} is above the high watermark "
                f"{self.high_watermark:,}; lower --low-watermark or raise --high-watermark"
            )


@dataclass(frozen=True, slots=True)
class MediaOptions:
    """How a file or stream is cut into chunks.

    Attributes:
        fps: Frames taken a second of stream.
        chunk_seconds: Seconds of a chunk.
        max_pixels: Most pixels of a frame handed on; larger ones are scaled down by the encoder.
        sound_memory: Seconds of sound that an encoder with a table of positions hears again when
            the table is full and it begins anew. 0: it forgets all.
    """

    fps: float = DEFAULTS.fps
    chunk_seconds: float = DEFAULTS.chunk_seconds
    max_pixels: int = DEFAULTS.max_pixels
    sound_memory: float = SOUND_MEMORY

    def __post_init__(self) -> None:
        for name, value, most in (
            ("fps", self.fps, 240.0),
            ("chunk_seconds", self.chunk_seconds, 60.0),
        ):
            if not 0 < value <= most:
                raise ConfigError(f"[media] {name} must be in (0, {most:g}], got {value}")
            if value < LEAST_MEDIA:
                raise ConfigError(f"[media] {name} must be at least {LEAST_MEDIA:g}, got {value}")
        _at_least("media", 28 * 28, max_pixels=self.max_pixels)
        _at_least("media", 0, sound_memory=self.sound_memory)


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How the next token is chosen, by mlx-lm's rules.

    Attributes:
        temperature: 0 is greedy.
        top_p: Nucleus, in (0, 1]; 1 is off.
        top_k: Most likely tokens to choose from; 0 is off.
        min_p: Least probability as a share of the greatest; 0 is off.
        seed: Of the random generator. None takes one from the system.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _at_least("sampling", 0, temperature=self.temperature, top_k=self.top_k, seed=self.seed)
        if self.temperature == float("inf"):
            raise ConfigError("[sampling] temperature must be finite, got inf")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"[sampling] top_p must be in (0, 1], got {self.top_p:g}")
        if not 0 <= self.min_p <= 1:
            raise ConfigError(f"[sampling] min_p must be in [0, 1], got {self.min_p:g}")


@dataclass(frozen=True, slots=True)
class DuplexConfig:
    """When a model that decides itself when to speak may do so.

    Attributes:
        force_listen: First units of the stream in which it listens, whatever it would decide.
        unit_tokens: Most tokens that it decides on in a unit.
        recall: Tokens that it said in units which have been dropped and that are kept in the
            system prefix, newest first; 0 is off.
    """

    force_listen: int = 3
    unit_tokens: int = 20
    recall: int = 0

    def __post_init__(self) -> None:
        _at_least("duplex", 0, force_listen=self.force_listen, recall=self.recall)
        _at_least("duplex", 2, unit_tokens=self.unit_tokens)


RULES = ("cost", "tiles", "span", "layout")
"""Rules by which a migration is accepted; see `acceptance`."""

SPAN_PAGES = 4
"""Pages by which a move must shorten the span; the paper leaves the number open. With fewer, a
suffix is packed at nearly every eviction; with many more, it reaches back to the prefix each time.
"""


@dataclass(frozen=True, slots=True)
class MigrationConfig:
    """When a layout's migration runs.

    Attributes:
        accept: "cost": the attention time saved until the next eviction exceeds the copy time;
            "tiles": fewer active pages or subblocks; "span": a span shorter by `span_pages`;
            "layout": whatever the layout proposes. None: the layout's own rule, which is "cost" for
            all but the eager one.
        span_pages: Pages of the rule "span" and of the ordered-suffix layout.
        tile_cost_us, row_cost_us: For "cost": microseconds of attention over one subblock in all
            layers, and of copying one row in all layers. None: measured on the device.
    """

    accept: str | None = None
    span_pages: int = SPAN_PAGES
    tile_cost_us: float | None = None
    row_cost_us: float | None = None

    def __post_init__(self) -> None:
        if self.accept is not None and self.accept not in RULES:
            raise ConfigError(
                f"[migration] --accept must be one of {', '.join(RULES)}; got {self.accept!r}"
            )
        if not self.span_pages >= 1:
            raise ConfigError(f"[migration] --span-pages must be at least 1, got {self.span_pages}")
        if (self.tile_cost_us is None) != (self.row_cost_us is None):
            one, other = "--tile-cost-us", "--row-cost-us"
            if self.tile_cost_us is None:
                one, other = other, one
            raise ConfigError(f"[migration] {one} needs the other cost beside it; give {other} too")
        if self.costs is not None and self.accept not in (None, "cost"):
            raise ConfigError(
                f"[migration] costs are read by --accept cost, not {self.accept!r}; leave out "
                "--tile-cost-us and --row-cost-us"
            )

    @property
    def costs(self) -> Costs | None:
        """The costs that were given, if any."""
        if self.tile_cost_us is None or self.row_cost_us is None:
            return None
        return Costs(self.tile_cost_us, self.row_cost_us)


def family_retention(defaults: FamilyDefaults, **given: int | float | None) -> RetentionConfig:
    """The retention configuration of a family, with what the user gave in its place.

    A high watermark given alone takes the low one down with it, in the proportion of the defaults.
    """
    base = RetentionConfig(
        image_sink=defaults.image_sink,
        audio_sink=defaults.audio_sink,
        text_budget=defaults.text_budget,
        recent_share=defaults.recent_share,
    )
    changes = {name: value for name, value in given.items() if value is not None}
    if "high_watermark" in changes and "low_watermark" not in changes:
        share = base.low_watermark / base.high_watermark
        scaled = int(changes["high_watermark"] * share)
        changes["low_watermark"] = max(min(base.low_watermark, scaled), 1)
    return replace(base, **changes)  # type: ignore[arg-type]
