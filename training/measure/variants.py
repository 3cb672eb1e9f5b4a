"""The settings of one run: policies under watermarks, variants of their budgets, and layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from omnitide.config import RetentionConfig
from omnitide.errors import ConfigError
from omnitide.evaluation.setting import Setting, sweep

WATERMARKS = ("high_watermark", "low_watermark")

KNOWN = tuple(f.name for f in fields(RetentionConfig) if f.name not in WATERMARKS)
"""What a variant may change; the watermarks have an option of their own."""

Variant = tuple[str, dict[str, int | float]]
"""A policy, and what of its retention is changed."""


def parse_variant(text: str) -> Variant:
    """A variant as `omnipick:image_sink=0,audio_sink=4`.

    Raises:
        ConfigError: It reads otherwise, or changes what is no part of `RetentionConfig`.
    """
    policy, colon, rest = text.partition(":")
    changes: dict[str, int | float] = {}
    for part in rest.split(","):
        key, equals, value = part.partition("=")
        number = _number(value)
        if not (colon and equals) or key not in KNOWN or number is None:
            raise ConfigError(
                "[recall] --vary must read POLICY:NAME=NUMBER,... with names out of "
                f"{', '.join(KNOWN)}; got {text!r}"
            )
        changes[key] = number
    return policy, changes


def _number(text: str) -> int | float | None:
    try:
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        return None


def make_settings(
    policies: Sequence[str],
    watermarks: Sequence[tuple[int, int]],
    variants: Sequence[Variant] = (),
    layouts: Sequence[str] = ("predictive",),
) -> tuple[Setting, ...]:
    """Every policy under every pair of watermarks, its variants, and all of them in every layout.

    Raises:
        ConfigError: A name is unknown, or numbers contradict each other.
    """
    found = list(sweep(policies, watermarks))
    for policy, changes in variants:
        RetentionConfig(**changes)  # refuses numbers that make no sense
        found += sweep((policy,), watermarks, kept=changes)
    placed = [replace(setting, layout=layout) for setting in found for layout in layouts]
    return tuple({setting.name: setting for setting in placed}.values())
