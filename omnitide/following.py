"""Following a stream from its first chunk to its last, with questions on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from omnitide.config import SamplingConfig
from omnitide.errors import ConfigError
from omnitide.media.chunk import MediaChunk
from omnitide.response import GenerationResponse, Update
from omnitide.session import Session

DEFAULT_PROMPT = "Describe what you see and hear."
"""Asked where the user of the command line gives no prompt."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the second of the stream at which to ask it (None: at the end).

    It is asked after the first chunk that reaches that second, so the model has seen everything up
    to it; one that lies behind the end is asked at the end.
    """

    prompt: str
    at: float | None = None


Event = Update | Question | GenerationResponse
"""A chunk was taken in, a question is put, a reply grows."""


def pair_questions(prompts: Sequence[str], moments: Sequence[float]) -> tuple[Question, ...]:
    """Questions of a command line: the i-th prompt at the i-th moment.

    One prompt is asked at every moment; prompts without a moment are asked at the end.

    Raises:
        ConfigError: A prompt is empty, a moment is negative, or more moments than prompts.
    """
    for prompt in prompts:
        if not prompt.strip():
            raise ConfigError("[prompt] must not be empty")
    for moment in moments:
        if not moment >= 0:
            raise ConfigError(f"[ask-at] must be at least 0 seconds, got {moment:g}")
    if len(prompts) == 1 and moments:
        return tuple(Question(prompts[0], m) for m in sorted(moments))
    if len(moments) > len(prompts):
        raise ConfigError(
            f"[ask-at] {len(moments)} moments for {len(prompts)} prompts; give one prompt for all "
            "moments, or one for each"
        )
    timed = [Question(p, m) for p, m in zip(prompts, moments, strict=False)]
    timed.sort(key=lambda q: q.at or 0.0)
    return (*timed, *(Question(p) for p in prompts[len(moments) :]))


def follow(
    session: Session,
    chunks: Iterable[MediaChunk],
    questions: Sequence[Question] = (),
    sampling: SamplingConfig | None = None,
) -> Iterator[Event]:
    """Append every chunk, ask every question at its moment, and tell what happens.

    Raises:
        CapacityError: A chunk or a question does not fit; the session is as it was before it.
        MediaError: The stream can't be read.
    """
    waiting = sorted((q for q in questions if q.at is not None), key=lambda q: q.at or 0.0)
    for chunk in chunks:
        yield session.append_media(chunk)
        while waiting and waiting[0].at is not None and waiting[0].at <= session.time:
            yield from _ask(session, waiting.pop(0), sampling)
    for question in (*waiting, *(q for q in questions if q.at is None)):
        yield from _ask(session, question, sampling)


def _ask(
    session: Session, question: Question, sampling: SamplingConfig | None
) -> Iterator[Question | GenerationResponse]:
    yield question
    yield from session.ask(question.prompt, sampling=sampling)
