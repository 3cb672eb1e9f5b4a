"""What streams `needle` makes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from omnitide.errors import ConfigError
from omnitide.evaluation.needle.fact import KINDS
from omnitide.evaluation.needle.sound import TOOLS, speech_tool

SIZE_MOST = 1024


@dataclass(frozen=True, slots=True)
class NeedleOptions:
    """What streams are made.

    Attributes:
        modalities: Names of `fact.KINDS`; None takes all that this machine can make.
        distances: Seconds between the end of a fact and the question.
        samples: Streams of each modality and distance.
        lead: Seconds before a fact.
        size: Width and height of the picture, pixels.
        seed: Of the facts and the filler.
    """

    modalities: tuple[str, ...] | None = None
    distances: tuple[float, ...] = (2.0, 8.0, 32.0, 128.0)
    samples: int = 4
    lead: float = 4.0
    size: int = 224
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.modalities or ():
            if name not in KINDS:
                raise ConfigError(
                    f"[needle] --modality must be one of {', '.join(KINDS)}; got {name!r}"
                )
        if "speech" in (self.modalities or ()) and speech_tool() is None:
            raise ConfigError(
                f"[needle] --modality speech needs one of {', '.join(TOOLS)}; install espeak-ng"
            )
        if not self.distances or not all(0 <= d < float("inf") for d in self.distances):
            given = ", ".join(f"{d:g}" for d in self.distances) or "none"
            raise ConfigError(f"[needle] --distance must be at least 0 seconds, got {given}")
        if self.samples < 1:
            raise ConfigError(f"[needle] --samples must be at least 1, got {self.samples}")
        if not 0 <= self.lead < float("inf"):
            raise ConfigError(f"[needle] --lead must be at least 0 seconds, got {self.lead:g}")
        if not 28 <= self.size <= SIZE_MOST:
            raise ConfigError(
                f"[needle] --size must be from 28 to {SIZE_MOST} pixels, got {self.size}"
            )
        if self.seed < 0:
            raise ConfigError(f"[needle] --seed must be at least 0, got {self.seed}")

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)
