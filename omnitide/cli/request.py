"""What `omnitide generate` was asked for, checked before anything is opened or loaded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from omnitide.cli.migration import read_migration
from omnitide.config import (
    DEFAULTS,
    FamilyDefaults,
    MediaOptions,
    MigrationConfig,
    RetentionConfig,
    SamplingConfig,
    family_retention,
)
from omnitide.errors import ConfigError
from omnitide.follow import DEFAULT_PROMPT, Question, pair_questions

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
        sampling, media: Of the options of that name.
        kept: The retention options that were given, by name.
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
    media: MediaOptions
    kept: dict[str, int | float]
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
    given = {name: getattr(options, name) for name in RETENTION_OPTIONS}
    request = Request(
        model=_named("--model", options.model),
        video=_named("--video", options.video),
        audio=_named("--audio", options.audio),
        images=tuple(_named("--image", image) or "" for image in options.image),
        questions=pair_questions(_read_prompts(options.prompt), options.ask_at),
        system_prompt=options.system_prompt,
        max_tokens=options.max_tokens,
        sampling=SamplingConfig(
            options.temperature, options.top_p, options.top_k, options.min_p, options.seed
        ),
        media=MediaOptions(options.fps, options.chunk_seconds, options.max_pixels),
        kept={name: value for name, value in given.items() if value is not None},
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
    return request


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
