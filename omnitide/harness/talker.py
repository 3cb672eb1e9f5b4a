"""Answers questions of harnesses: each in a session of its own, with a bounded history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from omnitide.config import MediaOptions, RetentionConfig, SamplingConfig, family_retention
from omnitide.errors import ConfigError
from omnitide.following import DEFAULT_PROMPT
from omnitide.harness.part import MEDIA, Part, chunks_of
from omnitide.loading import defaults_of, load
from omnitide.policies import make_policy
from omnitide.session import SMALLEST_UNIT_ROOM, Session

MAX_TOKENS = 1024
"""Longest reply where a harness sets none."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply.

    Attributes:
        text: Its words, cut before a stop string.
        tokens: Tokens of the reply.
        tokens_seen, tokens_kept: Of the history when it was asked.
    """

    text: str
    tokens: int
    tokens_seen: int
    tokens_kept: int


@dataclass(frozen=True, slots=True)
class Generation:
    """How a reply is made.

    Attributes:
        max_tokens: Longest reply.
        sampling: How tokens are chosen.
        stops: Strings before which the reply ends.
    """

    max_tokens: int = MAX_TOKENS
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    stops: tuple[str, ...] = ()


class Talker:
    """A loaded model with the options of its sessions."""

    def __init__(
        self,
        model: str | None = None,
        *,
        backend: str = "auto",
        dtype: str | None = None,
        policy: str = "omnipick",
        high_watermark: int | None = None,
        low_watermark: int | None = None,
        fps: float | None = None,
        chunk_seconds: float | None = None,
        max_pixels: int | None = None,
        system_prompt: str | None = None,
    ) -> None:
        """Load the model.

        Args:
            model: Folder or repository; None is the embedded default.
            backend, dtype: As `omnitide.load` takes them.
            policy, high_watermark, low_watermark: Of every session; watermarks of None are the
                family's.
            fps, chunk_seconds, max_pixels: How films are cut; `MediaOptions`' own if None, and
                of `max_pixels` the model's.
            system_prompt: None takes the model's.

        Raises:
            OmnitideError: The model can't be loaded, or an option makes no sense.
        """
        make_policy(policy)
        usual = MediaOptions()
        self.media = MediaOptions(
            usual.fps if fps is None else fps,
            usual.chunk_seconds if chunk_seconds is None else chunk_seconds,
            defaults_of(model).max_pixels if max_pixels is None else max_pixels,
        )
        self.policy, self.system_prompt = policy, system_prompt
        self.model = load(model, backend=backend, dtype=dtype, media=self.media)
        self.retention: RetentionConfig = family_retention(
            self.model.defaults, high_watermark=high_watermark, low_watermark=low_watermark
        )

    def reply(
        self, parts: Sequence[Part], generation: Generation, system_prompt: str | None = None
    ) -> Reply:
        """Answer a question about media.

        The media and the words between them are put into the stream in their order. What is asked
        is the words behind the last medium; where there are none, the last words before it.

        Args:
            parts: The question.
            generation: How to reply.
            system_prompt: In place of the talker's.

        Raises:
            OmnitideError: A medium can't be read, or the question does not fit.
        """
        if generation.max_tokens < 1:
            raise ConfigError(f"[harness] max_tokens must be at least 1: {generation.max_tokens}")
        before, prompt = split_question(parts)
        texts = [prompt, *(str(part.value) for part in before if part.kind == "text")]
        session = Session(
            self.model,
            policy=self.policy,
            retention=self.retention,
            media=self.media,
            system_prompt=self.system_prompt if system_prompt is None else system_prompt,
            max_tokens=generation.max_tokens,
            largest_unit=max(
                self.model.largest_media_unit(self.media), *(self._length(text) for text in texts)
            ),
        )
        for part in before:
            if part.kind == "text":
                session.append_text(part.value)
            else:
                for chunk in chunks_of(part, self.media):
                    session.append_media(chunk)
        seen, kept = session.cache.history.tokens_seen, len(session.cache.history)
        text, tokens = "", 0
        for piece in session.ask(
            prompt, max_tokens=generation.max_tokens, sampling=generation.sampling
        ):
            text, tokens = text + piece.text, piece.generation_tokens
            cut = min((at for at in map(text.find, generation.stops) if at >= 0), default=None)
            if cut is not None:
                text = text[:cut]
                break
        return Reply(text, tokens, seen, kept)

    def _length(self, text: str) -> int:
        """Tokens of a text as a unit; at least the room that every session has."""
        if len(text.encode()) <= SMALLEST_UNIT_ROOM // 2:
            return SMALLEST_UNIT_ROOM
        unit = self.model.backend.run(self.model.encode_prompt, text).unit
        return max(len(unit), SMALLEST_UNIT_ROOM)


def split_question(parts: Sequence[Part]) -> tuple[list[Part], str]:
    """What comes into the stream first, and what is asked; blank words are left out."""
    said = [part for part in parts if part.kind != "text" or str(part.value).strip()]
    last = max((i for i, part in enumerate(said) if part.kind in MEDIA), default=-1)
    words = [str(part.value).strip() for part in said[last + 1 :]]
    if words:
        return said[: last + 1], "\n".join(words)
    for place in reversed(range(len(said))):
        if said[place].kind == "text":
            return [*said[:place], *said[place + 1 :]], str(said[place].value).strip()
    return said, DEFAULT_PROMPT


def read_generation(given: dict[str, Any], most: int = MAX_TOKENS) -> Generation:
    """Generation options as harnesses name them, after `transformers`.

    `max_new_tokens`, `temperature`, `top_p`, `top_k`, `do_sample` and `until` are read; without
    `do_sample` or with a temperature of 0 the reply is greedy. What else there is says how
    `transformers` is to compute and has no meaning here.

    Raises:
        ConfigError: A value makes no sense.
    """
    until = given.get("until") or ()
    stops = (until,) if isinstance(until, str) else tuple(until)
    temperature = float(given.get("temperature") or 0.0)
    if given.get("do_sample") is False:
        temperature = 0.0
    top_p, top_k = given.get("top_p"), given.get("top_k")
    sampling = SamplingConfig(
        temperature, 1.0 if top_p is None else float(top_p), int(top_k or 0), 0.0, 0
    )
    count = given.get("max_new_tokens")
    return Generation(
        most if count is None else int(count), sampling, tuple(stop for stop in stops if stop)
    )


def parts_of(contents: Sequence[dict[str, Any]]) -> Iterator[Part]:
    """Parts of a list of `{"type": ..., "value": ...}`, as VLMEvalKit's messages are."""
    for content in contents:
        yield Part(str(content.get("type")), content.get("value"))
