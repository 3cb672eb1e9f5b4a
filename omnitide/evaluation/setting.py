"""A setting of the history: what is compared in one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from omnitide.config import FamilyDefaults, RetentionConfig, family_retention
from omnitide.errors import ConfigError
from omnitide.layouts import check_servable
from omnitide.policies import POLICIES, make_policy

FULL = "full"
"""The policy that drops nothing, which others are compared with."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A policy with its watermarks.

    Attributes:
        policy: A name of `policies.POLICIES`.
        high, low: Watermarks in tokens; None for a policy that never cuts.
        layout: A name of `layouts.LAYOUTS` that sessions serve.
        kept: Further fields of `RetentionConfig` that were given, by name.
    """

    policy: str
    high: int | None = None
    low: int | None = None
    layout: str = "predictive"
    kept: dict[str, int | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        make_policy(self.policy)
        check_servable(self.layout)
        if POLICIES[self.policy].bounded and (self.high is None or self.low is None):
            raise ConfigError(f"[setting] policy {self.policy} needs both watermarks")

    @property
    def bounded(self) -> bool:
        """Whether it cuts the history."""
        return POLICIES[self.policy].bounded

    @property
    def marks(self) -> str:
        """The watermarks, as `2500/1800`; empty for a policy that never cuts."""
        return f"{self.high}/{self.low}" if self.bounded else ""

    @property
    def name(self) -> str:
        """Unlike that of any setting that differs, and short where nothing unusual was given."""
        more = [f"{key}={value:g}" for key, value in sorted(self.kept.items())]
        if self.layout != "predictive":
            more.append(self.layout)
        return " ".join(part for part in (self.policy, self.marks, *more) if part)

    def retention(self, defaults: FamilyDefaults) -> RetentionConfig:
        """The retention configuration for a model family."""
        marks = {"high_watermark": self.high, "low_watermark": self.low} if self.bounded else {}
        return family_retention(defaults, **marks, **self.kept)


def sweep(
    policies: Sequence[str],
    watermarks: Sequence[tuple[int, int]],
    layout: str = "predictive",
    kept: dict[str, int | float] | None = None,
) -> tuple[Setting, ...]:
    """Every policy with every pair of watermarks; a policy that never cuts once.

    Raises:
        ConfigError: An unknown name, or watermarks that contradict each other.
    """
    found: dict[str, Setting] = {}
    for policy in policies:
        make_policy(policy)
        for high, low in watermarks:
            if POLICIES[policy].bounded:
                RetentionConfig(high_watermark=high, low_watermark=low)
                setting = Setting(policy, high, low, layout, dict(kept or {}))
            else:
                setting = Setting(policy)
            found.setdefault(setting.name, setting)
    return tuple(found.values())


def parse_watermarks(text: str) -> tuple[tuple[int, int], ...]:
    """Pairs of `--watermarks`: `2500/1800,5000/3500`.

    Raises:
        ConfigError: It reads otherwise.
    """
    pairs = []
    for part in text.split(","):
        high, slash, low = part.strip().partition("/")
        if not (slash and high.strip().isdecimal() and low.strip().isdecimal()):
            raise ConfigError(
                "[eval] --watermarks must be pairs high/low by commas, such as "
                f"2500/1800,5000/3500; got {text!r}"
            )
        pairs.append((int(high), int(low)))
    return tuple(dict.fromkeys(pairs))


def parse_policies(text: str) -> tuple[str, ...]:
    """Names of `--policy`, by commas.

    Raises:
        ConfigError: A name that is no policy.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        make_policy(name)
    return names
