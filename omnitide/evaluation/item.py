"""An item of a benchmark: a clip that is followed once, and what happens at which of its seconds.

All moments are seconds of the clip. One session follows one item, so history persists over its
media, texts, questions and replies, and never beyond it. Items are plain data: they are sent to
worker processes as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from omnitide.config import MediaOptions
from omnitide.errors import ConfigError
from omnitide.media.chunk import MediaChunk


class OpenClip(Protocol):
    """A clip being read, as `omnitide.media.stream.MediaStream` is one. A context manager."""

    @property
    def broken(self) -> str | None:
        """Where and why it broke off, or None. Asked after the last chunk."""
        ...

    @property
    def damage(self) -> str | None:
        """What could not be decoded and was passed over, or None."""
        ...

    def __iter__(self) -> Iterator[MediaChunk]: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class ClipSource(Protocol):
    """Where the chunks of an item come from. Plain data, for it travels to other processes."""

    def open(self, options: MediaOptions) -> OpenClip:
        """Open the clip, cut as the options say.

        Raises:
            MediaError: It can't be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class Note:
    """Text put into the stream without a reply.

    Attributes:
        text: What is put in.
        at: Second; every chunk that ends by then comes before it.
    """

    text: str
    at: float


@dataclass(frozen=True, slots=True)
class Question:
    """A question with a reply.

    Attributes:
        id: Unlike all others of its item.
        prompt: What is asked, word for word.
        at: Second; every chunk that ends by then comes before it, and none that ends later. None:
            after the end of the clip.
        expected: The right answer as the benchmark gives it; None where it gives none.
        task: Name of the task in the benchmark's tables.
        max_tokens: Longest reply.
        watched: Ranges `[start, stop)` of seconds whose tokens are counted just before the
            question: how many are still kept of how many there were (`Answer.kept`).
        tags: Anything that scores or tables need, as strings.
        aside: Whether question and reply are forgotten once it is answered, so that later
            questions don't see them.
    """

    id: str
    prompt: str
    at: float | None
    expected: str | None = None
    task: str = ""
    max_tokens: int = 16
    watched: tuple[tuple[float, float], ...] = ()
    tags: dict[str, str] = field(default_factory=dict)
    aside: bool = False


@dataclass(frozen=True, slots=True)
class Poll:
    """A question asked again and again until the model agrees, then the real question.

    Attributes:
        id, expected, task, max_tokens, tags: As of a `Question`; its reply is that to `then`.
        prompt: Asked at `at`, and every `every` seconds up to `until`, both included.
        at, every, until: Seconds.
        accepts: A reply that contains this word, in any case, agrees.
        then: Asked once, at once after it has agreed.
    """

    id: str
    prompt: str
    at: float
    until: float
    then: str
    every: float = 1.0
    accepts: str = "yes"
    expected: str | None = None
    task: str = ""
    max_tokens: int = 16
    tags: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.every > 0:
            raise ConfigError(f"[item] a poll's every must be above 0 seconds, got {self.every:g}")


Event = Note | Question | Poll


@dataclass(frozen=True, slots=True)
class Item:
    """One session of a benchmark.

    Attributes:
        id: Unlike all others of the benchmark; resuming goes by it.
        clip: Name of the clip. Confidence intervals draw clips; items of one clip are no
            independent evidence, and go to one worker.
        source: Where its chunks come from.
        events: What happens. The runner sorts them by their moments; those of one moment stay in
            this order.
        tags: Anything that scores or tables need, as strings.
    """

    id: str
    clip: str
    source: ClipSource
    events: tuple[Event, ...]
    tags: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [event.id for event in self.events if not isinstance(event, Note)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"[item] {self.id} has two questions named {twice[0]!r}; number them")

    @property
    def questions(self) -> tuple[Question | Poll, ...]:
        """The events that have a reply."""
        return tuple(event for event in self.events if not isinstance(event, Note))

    @property
    def longest_reply(self) -> int:
        """Most tokens of one reply; at least 1."""
        return max((question.max_tokens for question in self.questions), default=1)
