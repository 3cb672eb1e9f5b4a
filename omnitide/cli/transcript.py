"""Questions and replies, in order, as they come; an interrupted reply stays as far as it got."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from omnitide.following import Event, Question
from omnitide.response import DuplexUpdate, GenerationResponse, Utterance


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
class Turn:
    """A stretch of a duplex stream in which one side has the word.

    Attributes:
        speaker: "model", or "stream" while the model listens.
        start, stop: Seconds of the stream.
        text: What the model said.
        tokens: Tokens that it decided on, control tokens included.
        finished: Whether the model ended its turn; False too where the run ended first.
    """

    speaker: str
    start: float
    stop: float
    text: str = ""
    tokens: int = 0
    finished: bool = False


@dataclass(slots=True)
class Transcript:
    """All replies of a run, or all turns of a duplex one."""

    replies: list[Reply] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def add(self, event: Event, time: float) -> None:
        """Take note of an event that happened at a second of the stream.

        Updates are no part of it, but for what a model decided in them.
        """
        if isinstance(event, Question):
            self.replies.append(Reply(time, event.prompt))
        elif isinstance(event, GenerationResponse):
            reply = self.replies[-1]
            reply.text += event.text
            reply.tokens = event.generation_tokens
            reply.finish_reason = event.finish_reason
        elif isinstance(event, DuplexUpdate) and event.said is not None:
            self.add_unit(event.said)

    def add_unit(self, said: Utterance) -> None:
        """Take note of what a model decided in a unit. Its silence within its turn is its own."""
        speaker = "model" if said.speaks or said.in_turn else "stream"
        last = self.turns[-1] if self.turns else None
        if last is None or last.speaker != speaker or last.finished:
            last = Turn(speaker, said.start, said.stop)
            self.turns.append(last)
        last.stop = said.stop
        last.text += said.text
        last.tokens += len(said.tokens)
        last.finished = speaker == "model" and not said.in_turn

    def as_list(self) -> list[dict[str, Any]]:
        """Plain data, ready for JSON."""
        return [asdict(reply) for reply in self.replies]
