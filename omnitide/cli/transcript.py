"""Questions and replies, in order, as they come; an interrupted reply stays as far as it got."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from omnitide.follow import Event, Question
from omnitide.response import GenerationResponse


@dataclass(slots=True)
class Reply:
    """One question with its reply so far.

    Attributes:
        time: Second of the stream at which it was asked.
        prompt: The question.
        text: The reply so far.
        finish_reason: "stop" or "length"; None while it grows, and if it was interrupted.
        tokens: Tokens of the reply so far.
    """

    time: float
    prompt: str
    text: str = ""
    finish_reason: str | None = None
    tokens: int = 0


@dataclass(slots=True)
class Transcript:
    """All replies of a run."""

    replies: list[Reply] = field(default_factory=list)

    def add(self, event: Event, time: float) -> None:
        """Take note of an event that happened at a second of the stream; updates are no part."""
        if isinstance(event, Question):
            self.replies.append(Reply(time, event.prompt))
        elif isinstance(event, GenerationResponse):
            reply = self.replies[-1]
            reply.text += event.text
            reply.tokens = event.generation_tokens
            reply.finish_reason = event.finish_reason

    def as_list(self) -> list[dict[str, Any]]:
        """Plain data, ready for JSON."""
        return [asdict(reply) for reply in self.replies]
