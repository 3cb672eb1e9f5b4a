"""What `omnitide generate` was asked for, checked before anything is opened or loaded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omnitide.cli.migration import read_migration
from omnitide.config import (
    DEFAULTS,
    DuplexConfig,
    FamilyDefaults,
    MediaOptions,
    MigrationConfig,
    RetentionConfig,
    SamplingConfig,
    family_retention,
)
from omnitide.errors import ConfigError
from omnitide.following import DEFAULT_PROMPT, Question, pair_questions

MEDIA_OPTIONS = ("fps", "chunk_seconds", "max_pixels", "sound_memory")
DUPLEX_OPTIONS = ("force_listen", "unit_tokens", "recall")
RETENTION_OPTIONS = (
    "high_watermark",
    "low_watermark",
    "recent_units",
    "image_sink",
    "audio_sink",
    "text_budget",
    "sink_tokens",
    "heavy_share",
    "text_sink",
    "text_window",
    "vision_window",
)


@dataclass(frozen=True, slots=True)
class Request:
    """A checked command line.

    Attributes:
        model: Folder or repository; None is the embedded default.
        video, audio: Files or URLs of the stream.
        images: Files of still pictures.
        questions: What to ask and when.
        system_prompt: None takes the model's.
        max_tokens: Longest reply.
        sampling: Of the options of that name.
        cut, kept: The media and the retention options that were given, by name.
        duplex: How a model speaks that decides when to; None: it is asked.
        voice: File of the voice it speaks with, or None.
        policy, layout, migration, max_kv_size, kv_bits, backend, dtype: As in `Session` and `load`.
        trace: File to record the units in, or None.
        dry_run: Whether to tell the memory only.
        as_json, verbose: How to report.
    """

    model: str | None
    video: str | None
    audio: str | None
    images: tuple[str, ...]
    questions: tuple[Question, ...]
    system_prompt: str | None
    max_tokens: int
    sampling: SamplingConfig
    cut: dict[str, Any]
    kept: dict[str, int | float]
    duplex: DuplexConfig | None
    voice: str | None
    policy: str
    layout: str
    migration: MigrationConfig
    max_kv_size: int | None
    kv_bits: int | None
    backend: str
    dtype: str | None
    trace: str | None
    dry_run: bool
    as_json: bool
    verbose: bool

    @property
    def has_media(self) -> bool:
        """Whether any file was named."""
        return bool(self.video or self.audio or self.images)

    @property
    def files(self) -> tuple[str, ...]:
        """All files and URLs of media that were named."""
        named = (self.video, self.audio, *self.images, self.voice)
        return tuple(name for name in named if name is not None)

    def media(self, defaults: FamilyDefaults) -> MediaOptions:
        """How the stream is cut for a family.

        Raises:
            ConfigError: A number is out of range.
        """
        return defaults.media(**self.cut)

    def retention(self, defaults: FamilyDefaults) -> RetentionConfig:
        """The retention configuration for a family.

        Raises:
            ConfigError: The numbers contradict each other.
        """
        return family_retention(defaults, **self.kept)


def read_request(options: argparse.Namespace) -> Request:
    """Check the options of `omnitide generate`, and read stdin if a prompt is "-".

    Raises:
        ConfigError: An option, or what they make together, makes no sense.
    """
    request = Request(
        model=_named("--model", options.model),
        video=_named("--video", options.video),
        audio=_named("--audio", options.audio),
        images=tuple(_named("--image", image) or "" for image in options.image),
        questions=_read_questions(options),
        system_prompt=options.system_prompt,
        max_tokens=options.max_tokens,
        sampling=SamplingConfig(
            options.temperature, options.top_p, options.top_k, options.min_p, options.seed
        ),
        cut=_given(options, MEDIA_OPTIONS),
        kept=_given(options, RETENTION_OPTIONS),
        duplex=_read_duplex(options),
        voice=_named("--voice", options.voice),
        policy=options.policy,
        layout=options.layout,
        migration=read_migration(options, options.layout),
        max_kv_size=options.max_kv_size,
        kv_bits=options.kv_bits,
        backend=options.backend,
        dtype=options.dtype,
        trace=_named("--trace", options.trace),
        dry_run=options.dry_run,
        as_json=options.json,
        verbose=options.verbose,
    )
    for option, value in (
        ("--max-tokens", options.max_tokens),
        ("--max-kv-size", options.max_kv_size),
    ):
        if value is not None and value < 1:
            raise ConfigError(f"[generate] {option} must be at least 1, got {value}")
    if request.system_prompt is not None:
        _check_text("--system-prompt", request.system_prompt)
    request.retention(DEFAULTS)  # contradictions show with any family's defaults
    request.media(DEFAULTS)
    return request


def _given(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _read_duplex(options: argparse.Namespace) -> DuplexConfig | None:
    """The duplex options; None without --duplex, which all the others need."""
    given = _given(options, DUPLEX_OPTIONS)
    if options.duplex:
        return DuplexConfig(**given)
    for name in (*given, *(["voice"] if options.voice is not None else [])):
        raise ConfigError(f"[generate] --{name.replace('_', '-')} needs --duplex; add it")
    return None


def _read_questions(options: argparse.Namespace) -> tuple[Question, ...]:
    if not options.duplex:
        return pair_questions(_read_prompts(options.prompt), options.ask_at)
    if options.prompt or options.ask_at:
        raise ConfigError(
            "[generate] --duplex takes no questions, the model speaks when it decides to; leave "
            "out --prompt and --ask-at"
        )
    return ()


def _named(option: str, value: str | None) -> str | None:
    if value == "":
        raise ConfigError(f"[generate] {option} must not be empty")
    return value


def _read_prompts(given: Sequence[str]) -> list[str]:
    prompts = [_read_stdin() if text == "-" else text for text in given or [DEFAULT_PROMPT]]
    for prompt in prompts:
        _check_text("--prompt", prompt)
    return prompts


def _check_text(option: str, text: str) -> None:
    """Refuse bytes that were no UTF-8: the system hands them over as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"[generate] {option} must be UTF-8 text ({error.reason})") from error


def _read_stdin() -> str:
    if sys.stdin is None or sys.stdin.closed:
        raise ConfigError("[prompt] '-' reads stdin, which is closed; pipe the prompt in")
    try:
        return sys.stdin.read().rstrip("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"[prompt] stdin must be UTF-8 text ({error.reason})") from error
