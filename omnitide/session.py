"""A session: one stream, followed by one model, with a bounded history.

The stream is always inside the user's turn: media and text units follow one another, a prompt unit
closes the turn and opens the assistant's, a reply unit closes that and opens the user's again. So
the conversation stays well formed whichever units a policy drops.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.acceptance import make_acceptance
from omnitide.backend import Array, Backend
from omnitide.cache import BoundedCache, Eviction
from omnitide.cache_state import CacheState
from omnitide.calibration import Calibration
from omnitide.capacity import ADVICE, CLOSING, plan_capacity
from omnitide.config import (
    MediaOptions,
    MigrationConfig,
    RetentionConfig,
    SamplingConfig,
    family_retention,
)
from omnitide.detokenizer import Detokenizer
from omnitide.errors import ConfigError, SessionError
from omnitide.figures import Figures
from omnitide.layouts import check_servable, make_layout
from omnitide.media.chunk import MediaChunk
from omnitide.model import EncodedUnit, OmniModel
from omnitide.policies import make_policy
from omnitide.response import GenerationResponse, SessionStats, Update
from omnitide.sampling import Sampler
from omnitide.units import UnitKind

SMALLEST_UNIT_ROOM = 512
"""Room for a unit of text where media units are smaller."""


class Session:
    """Follows a stream: append chunks and text, ask, go on."""

    def __init__(
        self,
        model: OmniModel,
        *,
        policy: str = "omnipick",
        layout: str = "predictive",
        retention: RetentionConfig | None = None,
        migration: MigrationConfig | None = None,
        media: MediaOptions | None = None,
        system_prompt: str | None = None,
        max_tokens: int = 100,
        largest_unit: int | None = None,
        max_kv_size: int | None = None,
        kv_bits: int | None = None,
    ) -> None:
        """Allocate the pools and prefill the system prefix.

        Args:
            model: As `omnitide.load` returns it.
            policy: A name of `policies.POLICIES`.
            layout: A name of `layouts.LAYOUTS`.
            retention: Watermarks and budgets; the family's defaults if None.
            migration: When the layout's migrations run; by the layout's own rule if None.
            media: What chunks to expect, which bounds the largest media unit; the model's if None.
            system_prompt: System message; the family's default if None.
            max_tokens: Longest reply.
            largest_unit: Tokens of the largest unit; what `media` allows (at least 512) if None.
            max_kv_size: Tokens that the pools may hold; watermarks are lowered to fit.
            kv_bits: 8 packs keys and values in half the memory, with some loss; the backend's
                dtype if None.

        Raises:
            ConfigError: The numbers can't be met, the backend can't pack keys and values, or the
                layout is for comparison only; nothing was allocated.
        """
        if max_tokens < 1:
            raise ConfigError(f"[session] max_tokens must be at least 1, got {max_tokens}")
        if max_kv_size is not None and max_kv_size < 1:
            raise ConfigError(f"[session] max_kv_size must be at least 1, got {max_kv_size}")
        check_kv_bits(model.backend, kv_bits)
        check_servable(layout)
        self.migration = migration or MigrationConfig()
        placer = make_layout(layout, self.migration.span_pages)
        self.model = model
        self.max_tokens = max_tokens
        self.max_kv_size = max_kv_size
        self._policy = make_policy(policy)
        self._figures = Figures()
        self._stop = False
        self._replies = 0  # counts replies begun, so that each knows whether it is the newest
        self._before: CacheState | None = None  # what an aside that was begun goes back to
        self._run = model.backend.run
        media = media or model.media
        unit = self._largest_unit(media, largest_unit)
        self.largest_unit = unit
        system, changes = self._run(self._begin, system_prompt)
        config, capacity = plan_capacity(
            retention or family_retention(model.defaults),
            self._policy.bounded,
            len(system.unit) + self._prefix_room,
            unit,
            max_tokens + CLOSING,
            max_kv_size,
            self._advice,
        )
        self.retention = config
        self.costs = Calibration(model.backend, model.spec, kv_bits=kv_bits)
        self.cache: BoundedCache = self._run(
            BoundedCache,
            model,
            self._policy,
            placer,
            config,
            capacity,
            make_acceptance(self.migration, placer.accept, config.high_watermark, self.costs),
            kv_bits,
        )
        self._run(partial(self.cache.append, system, **changes))

    @property
    def time(self) -> float:
        """Second of the stream up to which the model has seen it."""
        return self.cache.state.time

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the history can hold; for an unbounded policy, that the pools hold now."""
        return self.cache.capacity_tokens

    def append_media(self, chunk: MediaChunk) -> Update:
        """Let the model see and hear one chunk of the stream.

        Raises:
            CapacityError: The chunk has more tokens than fit; nothing has changed.
        """

        def encode() -> tuple[EncodedUnit, dict[str, Any]]:
            encoded, stream = self.model.encode_media(chunk, self.cache.state.stream)
            return encoded, {"stream": stream, "time": max(self.time, chunk.stop)}

        return self._run(self._update, encode)

    def append_text(self, text: str) -> Update:
        """Put text into the stream without asking for a reply.

        Raises:
            ConfigError: The text is empty.
            CapacityError: It has more tokens than fit; nothing has changed.
        """
        _refuse_empty("text", text)
        return self._run(self._update, lambda: (self.model.encode_text(text, self.time), {}))

    def ask(
        self,
        prompt: str,
        *,
        max_tokens: int | None = None,
        sampling: SamplingConfig | None = None,
        aside: bool = False,
    ) -> Iterator[GenerationResponse]:
        """Ask a question now and stream the reply.

        The prompt is checked when this is called; the model runs while the result is iterated.
        Leaving the loop early ends the reply where it stands; the session goes on. So does
        appending or asking before it has ended.

        Args:
            prompt: The question.
            max_tokens: Longest reply; the session's if None.
            sampling: How tokens are chosen; greedy if None.
            aside: Forget question and reply once the reply has ended, so that the history is what
                it was before. Nothing is evicted meanwhile: a history above its watermark is cut
                before the question is seen.

        Raises:
            ConfigError: The prompt is empty, or `max_tokens` exceeds the session's.
            CapacityError: The prompt does not fit; nothing has changed.
            SessionError: The reply is read on after something else was appended or asked.
        """
        _refuse_empty("prompt", prompt)
        limit = self.max_tokens if max_tokens is None else max_tokens
        if not 1 <= limit <= self.max_tokens:
            raise ConfigError(
                f"[ask] max_tokens must be from 1 to the session's {self.max_tokens}, got {limit}"
            )
        return self._reply(prompt, limit, Sampler(sampling or SamplingConfig()), aside)

    def stop(self) -> None:
        """End the reply being streamed after its next token. May be called from any thread."""
        self._stop = True

    def stats(self) -> SessionStats:
        """Figures as of now."""
        return self._figures.stats(self.cache)

    _prefix_room = 0  # tokens by which the system prefix may grow
    _advice = ADVICE

    def _largest_unit(self, media: MediaOptions, given: int | None) -> int:
        """Tokens of the largest unit."""
        return given or max(self.model.largest_media_unit(media), SMALLEST_UNIT_ROOM)

    # -- on the backend's thread ----------------------------------------------------------------

    def _begin(self, system_prompt: str | None) -> tuple[EncodedUnit, dict[str, Any]]:
        """The system prefix, and the fields of the cache's state that come with it."""
        return self.model.encode_system(system_prompt), {}

    def _update(self, encode: Callable[[], tuple[EncodedUnit, dict[str, Any]]]) -> Update:
        """Encode a unit, append it, and cut the history if that made it too long."""
        started = clock.perf_counter()
        self._return_to_user()
        moved = self.cache.state.rows_moved
        encoded, changes = encode()
        self.cache.append(encoded, **changes)
        eviction = self.cache.evict()
        self.model.backend.synchronize()
        seconds = clock.perf_counter() - started
        self._figures.updated(seconds)
        state = self.cache.state
        return Update(
            time=self.time,
            tokens=len(encoded.unit),
            seconds=seconds,
            evicted=eviction.retention.num_deleted if eviction else 0,
            rows_moved=state.rows_moved - moved,
            tokens_seen=state.history.tokens_seen,
            tokens_kept=len(state.history),
            active_pages=state.table.active_pages,
        )

    def _reply(
        self, prompt: str, limit: int, sampler: Sampler, aside: bool
    ) -> Iterator[GenerationResponse]:
        self._stop = False
        started = clock.perf_counter()
        logits, asked, reply = self._run(self._begin_reply, prompt, aside)
        prompt_tps = asked / max(clock.perf_counter() - started, 1e-9)
        text = Detokenizer(self.model.decode_text)
        seconds = 0.0
        for count in range(1, limit + 1):
            started = clock.perf_counter()
            drawn_from = logits
            token = self._run(sampler.choose, self.model.backend, logits)
            ends = token in self.model.eos_tokens
            last = ends or self._stop or count == limit
            logits = self._run(self._feed, reply, token, last)
            elapsed = clock.perf_counter() - started
            seconds += elapsed
            self._figures.decoded(elapsed)
            piece = ("" if ends else text.add(token)) + (text.flush() if last else "")
            history = self.cache.history
            yield GenerationResponse(
                text=piece,
                token=token,
                read_logprobs=partial(self._run, self._log_probabilities, drawn_from),
                from_draft=False,
                prompt_tokens=asked,
                prompt_tps=prompt_tps,
                generation_tokens=count,
                generation_tps=count / max(seconds, 1e-9),
                peak_memory=self.model.backend.peak_memory() / 1e9,
                finish_reason=None if not last else "stop" if ends or self._stop else "length",
                time=self.time,
                tokens_seen=history.tokens_seen,
                tokens_kept=len(history),
                evictions=self.cache.state.evictions,
            )
            if last:
                return

    def _log_probabilities(self, logits: Array) -> NDArray[np.float32]:
        backend = self.model.backend
        return backend.to_numpy(backend.log_softmax(logits)).astype(np.float32)

    def _begin_reply(self, prompt: str, aside: bool) -> tuple[Array, int, int]:
        """Prefill a prompt and open the reply. Logits, tokens of the prompt, number of the reply.

        What an aside writes goes to slots that are free before it, so going back to the state
        before it is all that forgetting takes; an eviction could move cells onto others' slots.
        """
        self._replies += 1
        self._return_to_user()
        encoded = self.model.encode_prompt(prompt, self.time, self.cache.state.stream)
        if aside:
            while self.cache.evict() is not None:  # so that `append` below has nothing to cut
                pass
            self._before = self.cache.state
        # A history above its watermark is cut after the reply: what is asked about must be seen.
        logits = self.cache.append(encoded)
        self.cache.open_reply(self.time)
        self.model.backend.synchronize(logits)
        return logits, len(encoded.unit), self._replies

    def _feed(self, reply: int, token: int, last: bool) -> Array:
        """Add a token to the open reply; with the last one, return to the user's turn."""
        record = self.cache.history.units[-1]
        if reply != self._replies or not record.open:
            raise SessionError(
                "[ask] a reply must be read to its end before the session goes on, this one was "
                "ended by what was appended or asked since; ask again"
            )
        if last and self._before is not None:
            self._return_to_user()  # nobody reads on after the last token of an aside
            return None
        unit = self.model.reply_unit([token], record.length)
        logits = self.cache.extend(unit, self.model.embed([token]))
        if last:
            self._return_to_user()
        return logits

    def _return_to_user(self) -> Eviction | None:
        """End an open or never-begun reply, so that the stream is in the user's turn again.

        Derived from the history alone, so a reply that was interrupted anywhere is ended here, at
        the latest before the next unit. An aside is forgotten instead.
        """
        if self._before is not None:
            self.cache.state, self._before = self._before, None
            return None
        units = self.cache.history.units
        if units[-1].kind == UnitKind.PROMPT:
            self.cache.open_reply(self.time)
        elif not units[-1].open:
            return None
        record = self.cache.history.open_unit()
        unit = self.model.closing_unit(record.length, self.cache.history.cells)
        self.cache.extend(unit, self.model.embed(unit.cells["token"]))
        self.cache.close()
        return self.cache.evict()


def check_kv_bits(backend: Backend, kv_bits: int | None) -> None:
    """Refuse bits of keys and values that a backend can't pack.

    Raises:
        ConfigError: It can't.
    """
    if kv_bits is None or kv_bits in backend.kv_bits:
        return
    known = ", ".join(map(str, sorted(backend.kv_bits)))
    can = f"packs keys and values in {known} bits" if known else "doesn't pack keys and values"
    raise ConfigError(
        f"[session] {backend.name} {can}, got {kv_bits}; leave out --kv-bits, or lower "
        "--high-watermark or --max-kv-size to save memory"
    )


def _refuse_empty(what: str, text: str) -> None:
    if not text.strip():
        raise ConfigError(f"[{what}] must not be empty")
