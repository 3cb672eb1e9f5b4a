"""What a bounded prompt cache was asked to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from omnitide.config import DEFAULTS, RetentionConfig, family_retention
from omnitide.errors import ConfigError

UNIT_SHARE = 8
"""A unit takes at most one part in so many of the low watermark."""


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Options of a prompt cache.

    Attributes:
        policy: Name of a policy (`TEXT_POLICIES`).
        retention: Watermarks and budgets.
        draft_tokens: Most tokens that speculative decoding takes back at once; 0 without it.
    """

    policy: str
    retention: RetentionConfig
    draft_tokens: int = 0

    def __post_init__(self) -> None:
        most = self.retention.low_watermark // 2
        if not 0 <= self.draft_tokens <= most:
            raise ConfigError(
                f"[mlx-lm] draft_tokens must be in [0, {most}], half the low watermark of "
                f"{self.retention.low_watermark:,}; got {self.draft_tokens}"
            )

    @property
    def longest_unit(self) -> int:
        """Tokens at which a paragraph is cut."""
        return max(self.retention.low_watermark // UNIT_SHARE, 1)

    def beside(self, tail: int) -> RetentionConfig:
        """The retention of what lies before the newest `tail` tokens, which stay."""
        config = self.retention
        low = max(config.low_watermark - tail, 1)
        return replace(config, low_watermark=low, high_watermark=max(config.high_watermark, low))

    def described(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "policy": self.policy,
            "draft_tokens": self.draft_tokens,
            **asdict(self.retention),
        }

    @classmethod
    def from_described(cls, values: dict[str, Any]) -> CacheOptions:
        """The options that `described` gave.

        Raises:
            ConfigError: A value is out of range.
            TypeError, KeyError: Something is missing or too much.
        """
        rest = dict(values)
        policy, draft = rest.pop("policy"), rest.pop("draft_tokens")
        return cls(policy, RetentionConfig(**rest), draft)


KNOBS = tuple(f.name for f in fields(RetentionConfig) if not f.name.endswith("_watermark"))
"""Budgets of the policies, which `make_prompt_cache` hands on."""


def cache_options(
    policy: str,
    max_kv_size: int | None,
    high_watermark: int | None,
    low_watermark: int | None,
    draft_tokens: int,
    knobs: dict[str, Any],
) -> CacheOptions:
    """Check what was given and fill in the rest.

    Raises:
        ConfigError: A name or a value makes no sense.
    """
    unknown = sorted(set(knobs) - set(KNOBS))
    if unknown:
        raise ConfigError(
            f"[mlx-lm] {unknown[0]} is no option of make_prompt_cache; the budgets are "
            f"{', '.join(KNOBS)}"
        )
    if max_kv_size is not None and high_watermark is not None:
        raise ConfigError(
            f"[mlx-lm] max_kv_size ({max_kv_size:,}) is another name of high_watermark "
            f"({high_watermark:,}); give one"
        )
    high = high_watermark if max_kv_size is None else max_kv_size
    watermarks = {"max_kv_size or high_watermark": high, "low_watermark": low_watermark}
    for name, value in {**watermarks, "draft_tokens": draft_tokens, **knobs}.items():
        _check_number(name, value)
    retention = family_retention(
        DEFAULTS, high_watermark=high, low_watermark=low_watermark, **knobs
    )
    return CacheOptions(policy, retention, draft_tokens)


_FRACTIONS = ("recent_share", "heavy_share", "vision_window")


def _check_number(name: str, value: Any) -> None:
    """Refuse what is no number: a string, a tokenizer in the place of a watermark.

    Raises:
        ConfigError: The value is no whole number, or no number where a fraction is meant.
    """
    kinds = (int, float) if name in _FRACTIONS else (int,)
    if value is None and name != "draft_tokens":
        return  # not given
    if isinstance(value, bool) or not isinstance(value, kinds):
        what = "a number" if name in _FRACTIONS else "a whole number"
        raise ConfigError(
            f"[mlx-lm] {name} must be {what}, got {repr(value)[:40]} ({type(value).__name__}); "
            "give it as one, and other options by name"
        )
