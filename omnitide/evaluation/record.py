"""What following an item gave: its replies and figures, as one line of a journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply.

    Attributes:
        question: Id of the question.
        reply: Its words; None where it was never asked (a poll that the model did not agree to).
        asked: Second that the model had seen when it was asked; None where it was not.
        first_seconds: Wall seconds from the question to the first token.
        seconds: Wall seconds of the question and the reply, polls included.
        tokens: Tokens of the reply.
        finish: "stop", "length" or None.
        polls: Times that a poll was asked.
        tokens_seen, tokens_kept: Of the history when it was asked.
        kept: Of each watched range: tokens kept, and tokens that there were.
        past_end: Whether its moment lay behind the end of the clip; it was asked at the end.
    """

    question: str
    reply: str | None
    asked: float | None = None
    first_seconds: float = 0.0
    seconds: float = 0.0
    tokens: int = 0
    finish: str | None = None
    polls: int = 0
    tokens_seen: int = 0
    tokens_kept: int = 0
    kept: tuple[tuple[int, int], ...] = ()
    past_end: bool = False

    @property
    def text(self) -> str:
        """The reply, empty where there is none."""
        return self.reply or ""


@dataclass(frozen=True, slots=True)
class Record:
    """An item followed under a setting.

    Attributes:
        item, clip: Ids.
        setting: Name of the setting.
        answers: In the order in which they were asked.
        loop_seconds: Wall seconds of all updates and replies: reading the model's input, prefill,
            decoding and keeping the cache. Without loading, the system prefix, and decoding films.
        update_ms: Median milliseconds of an update; None without one.
        clip_seconds: Seconds of the clip that were followed.
        stats: Of the session at its end, as `omnitide generate --json` gives them.
        peak_span: Most slots of the physical span after any update or reply.
        error: Why it failed; None if it did not. A failed item has no answers.
        damage: What of the clip could not be decoded and was passed over, or None.
    """

    item: str
    clip: str
    setting: str
    answers: tuple[Answer, ...] = ()
    loop_seconds: float = 0.0
    update_ms: float | None = None
    clip_seconds: float = 0.0
    stats: dict[str, Any] = field(default_factory=dict)
    peak_span: int = 0
    error: str | None = None
    damage: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What a journal holds once: setting and item."""
        return self.setting, self.item

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """The record that `as_dict` made.

        Raises:
            KeyError, TypeError: It was made by something else.
        """
        answers = tuple(
            Answer(**{**answer, "kept": tuple((int(a), int(b)) for a, b in answer["kept"])})
            for answer in data["answers"]
        )
        return cls(**{**data, "answers": answers})
