"""A duplex session: the model follows a stream and speaks when it decides to.

Each chunk is one unit. Its media are appended and the unit stays open; the model then decides token
by token, from the logits after the last of them: to listen, which ends the unit, or to say
something, up to the end of a chunk. A turn of the model may go on over several units.
"""

from __future__ import annotations

import time as clock
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array
from omnitide.capacity import Advice
from omnitide.config import DuplexConfig, MediaOptions, SamplingConfig
from omnitide.detokenizer import Detokenizer
from omnitide.errors import ConfigError, SessionError
from omnitide.media.chunk import MediaChunk
from omnitide.model import Duplex, EncodedUnit, OmniModel
from omnitide.response import DuplexUpdate, Utterance
from omnitide.sampling import Sampler
from omnitide.session import Session
from omnitide.talk import Talk
from omnitide.units import UnitKind

END_OF_UNIT = 1
"""Tokens that close a unit behind what was decided."""


class DuplexSession(Session):
    """Follows a stream with a model that speaks when it decides to. It takes no questions."""

    def __init__(
        self,
        model: OmniModel,
        *,
        duplex: DuplexConfig | None = None,
        voice: NDArray[np.float32] | None = None,
        sampling: SamplingConfig | None = None,
        **session: Any,
    ) -> None:
        """Allocate the pools and prefill the system prefix.

        Args:
            model: One that can (`OmniModel.duplex`).
            duplex: When it may speak, and what is kept of what it said.
            voice: A clip of the voice to speak with: mono, 16 kHz, float32 in [-1, 1].
            sampling: How tokens are chosen; greedy if None.
            **session: As `Session` takes them, but for `max_tokens`.

        Raises:
            ConfigError: The model speaks only when asked, or as `Session`.
        """
        if model.duplex is None:
            raise speaks_only_when_asked(model.spec.name)
        self.duplex = duplex or DuplexConfig()
        self._rules: Duplex = model.duplex
        self._voice = voice
        self._sampler = Sampler(sampling or SamplingConfig())
        self._words = Detokenizer(model.decode_text)
        self._told = -1  # the newest unit whose update was returned
        self._prefix_room = recall_room(self._rules.recall_marker, self.duplex)
        super().__init__(model, max_tokens=self.duplex.unit_tokens, **session)

    @property
    def talk(self) -> Talk:
        """Who spoke so far."""
        talk: Talk = self.cache.state.talk
        return talk

    @property
    def untold(self) -> Utterance | None:
        """What was decided in the newest unit, if an interrupt kept `append_media` from telling."""
        record, said = self.cache.history.units[-1], self.talk.said
        if record.id <= self._told or record.kind != UnitKind.MEDIA or not said:
            return None
        start = record.time or 0.0
        return self._utterance(start, start + record.seconds, self.model.decode_text(said))

    def append_media(self, chunk: MediaChunk) -> DuplexUpdate:
        """Let the model see and hear one chunk, and speak if it decides to.

        Raises:
            CapacityError: The chunk has more tokens than fit; nothing has changed.
        """
        self._stop = False
        started = clock.perf_counter()
        moved, seen = self.cache.state.rows_moved, self.cache.history.tokens_seen
        logits = self._run(self._hear, chunk)
        said = None
        if logits is not None:
            said = self._utterance(chunk.start, chunk.stop, self._decide(logits))
        evicted = self._run(self._end_unit)
        self._run(self.model.backend.synchronize)
        seconds = clock.perf_counter() - started
        self._figures.updated(seconds)
        state = self.cache.state
        self._told = state.history.units[-1].id
        return DuplexUpdate(
            time=self.time,
            tokens=state.history.tokens_seen - seen,
            seconds=seconds,
            evicted=evicted,
            rows_moved=state.rows_moved - moved,
            tokens_seen=state.history.tokens_seen,
            tokens_kept=len(state.history),
            active_pages=state.table.active_pages,
            said=said,
        )

    def append_text(self, text: str) -> NoReturn:
        """Refuse.

        Raises:
            SessionError: Always.
        """
        raise SessionError("[duplex] a duplex stream takes no text; open a Session to give it some")

    def ask(self, prompt: str, **options: Any) -> NoReturn:
        """Refuse.

        Raises:
            SessionError: Always.
        """
        raise SessionError(
            "[duplex] a duplex stream takes no questions, the model speaks when it decides to; "
            "open a Session to ask"
        )

    _advice = Advice(
        prefix=", or shorten --system-prompt, --voice or --recall",
        units=", or lower --max-pixels, --chunk-seconds or --unit-tokens",
    )

    def _largest_unit(self, media: MediaOptions, given: int | None) -> int:
        return unit_room(given or self._rules.largest_unit(media), self.duplex)

    def _utterance(self, start: float, stop: float, text: str) -> Utterance:
        talk = self.talk
        speaks = not set(talk.said) <= self._rules.chunk_ends
        return Utterance(start, stop, speaks, text, talk.said, talk.in_turn)

    def _decide(self, logits: Array) -> str:
        """Let the model decide to the end of what it says. Text that became whole."""
        text = ""
        while True:
            started = clock.perf_counter()
            token, logits = self._run(self._step, logits)
            self._figures.decoded(clock.perf_counter() - started)
            text += self._words.add(token)
            if token == self._rules.turn_end:
                text += self._words.flush()
            if token in self._rules.chunk_ends:
                return text

    # -- on the backend's thread ----------------------------------------------------------------

    def _begin(self, system_prompt: str | None) -> tuple[EncodedUnit, dict[str, Any]]:
        encoded = self._rules.encode_system(system_prompt, self._voice)
        return encoded, {"stream": self._rules.new_stream(), "talk": Talk()}

    def _hear(self, chunk: MediaChunk) -> Array | None:
        """Append the media of a unit, which stays open. Logits, or None for a unit of nothing."""
        self._end_unit()
        encoded, stream = self._rules.encode_media(chunk, self.cache.state.stream)
        changes = {"stream": stream, "time": max(self.time, chunk.stop)}
        if not len(encoded.unit):
            self.cache.append(encoded, **changes)
            return None
        talk = replace(self.talk, said=())
        return self.cache.append(encoded, open=True, talk=talk, **changes)

    def _step(self, logits: Array) -> tuple[int, Array]:
        """Choose the next token and feed it. The token, and the logits after it."""
        talk, rules = self.talk, self._rules
        chosen = talk.chosen
        if len(talk.said) == self.duplex.unit_tokens - 1 or self._stop:
            token = rules.unit_full
        elif talk.units < self.duplex.force_listen:
            token = rules.listen
        else:
            token = rules.choose(logits, chosen, self._sampler)
            if rules.counts(token):
                chosen = (*chosen, token)[-rules.remembered :]
            if token == rules.listen and talk.in_turn:
                token = rules.instead_of_listen
        return token, self._feed_decided(token, replace(talk, chosen=chosen))

    def _feed_decided(self, token: int, talk: Talk) -> Array:
        rules = self._rules
        in_turn = talk.in_turn if token in rules.chunk_ends else token != rules.turn_end
        talk = replace(talk, in_turn=in_turn, said=(*talk.said, token))
        unit = rules.decided([token], self.cache.history.cells[-1:])
        return self.cache.extend(unit, self.model.embed([token]), talk=talk)

    def _end_unit(self) -> int:
        """Close the unit that is open, if any, and cut the history. Tokens that left.

        A unit that was interrupted anywhere is ended here, at the latest before the next one.
        """
        history = self.cache.history
        if history.units[-1].open:
            rules, record = self._rules, history.units[-1]
            if not self.talk.said or self.talk.said[-1] not in rules.chunk_ends:
                self._feed_decided(rules.unit_full if self.talk.said else rules.listen, self.talk)
            unit = rules.closing(self.cache.history.cells[-1:])
            if len(unit):
                self.cache.extend(
                    unit, self.model.embed(unit.cells["token"]), talk=self._after_unit(record.id)
                )
            self.cache.close()
        eviction = self.cache.evict()
        self._recall()
        return eviction.retention.num_deleted if eviction else 0

    def _after_unit(self, unit: int) -> Talk:
        talk = self.talk
        spoken = talk.spoken
        if self.duplex.recall:
            spoken = (*spoken, (unit, self._rules.worth_recalling(talk.said)))
        return replace(talk, units=talk.units + 1, spoken=spoken)

    def _recall(self) -> None:
        """Write words of dropped units into the system prefix, whose end is prefilled anew."""
        talk, history = self.talk, self.cache.history
        alive = {unit.id for unit in history.units}
        spoken = tuple(entry for entry in talk.spoken if entry[0] in alive)
        lost = [token for unit, words in talk.spoken if unit not in alive for token in words]
        talk = replace(talk, spoken=spoken)
        if not lost:
            if talk != self.talk:
                self.cache.state = replace(self.cache.state, talk=talk)
            return
        written = self._rules.recall_marker + len(talk.recalled) if talk.recalled else 0
        kept = history.prefix - self._rules.suffix - written
        recalled = (*talk.recalled, *lost)[-self.duplex.recall :]
        unit = self._rules.recalled(recalled, history.cells[:kept])
        talk = replace(talk, recalled=recalled)
        self.cache.renew_prefix(kept, unit, self.model.embed(unit.cells["token"]), talk=talk)


def speaks_only_when_asked(name: str) -> ConfigError:
    """The error for a model of this name, which can't decide when to speak."""
    return ConfigError(
        f"[duplex] {name} speaks only when it is asked: its tokenizer has no tokens for listening "
        "and speaking; use MiniCPM-o 4.5, or ask questions"
    )


def recall_room(marker: int, config: DuplexConfig) -> int:
    """Tokens by which what is recalled may make the system prefix longer.

    `marker`: tokens before what is recalled.
    """
    return marker + config.recall if config.recall else 0


def unit_room(heard: int, config: DuplexConfig) -> int:
    """Tokens of the largest unit, of which `heard` come before the model decides."""
    return heard + config.unit_tokens + END_OF_UNIT
