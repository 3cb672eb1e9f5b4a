"""One item in the making: its events at their moments, its replies, and what is measured."""

from __future__ import annotations

import time as clock
import zlib
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from omnitide.config import SamplingConfig
from omnitide.evaluation.item import Event, Item, Note, Poll, Question
from omnitide.evaluation.record import Answer, Record
from omnitide.evaluation.setting import Setting
from omnitide.response import Update
from omnitide.session import Session

AT_THE_END = 1.0
"""A moment no more than so many seconds behind the end of a clip is taken to be its end."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A unit that was put into the stream: its id, seconds and tokens."""

    unit: int
    start: float
    stop: float
    tokens: int


class ItemRun:
    """Leads a session through one item. The caller hands over what it takes in."""

    def __init__(self, session: Session, item: Item, sampling: SamplingConfig) -> None:
        self._session, self._item, self._sampling = session, item, sampling
        self._moments = moments(item.events)
        self._answers: list[Answer] = []
        self._seen: list[_Seen] = []
        self._updates: list[float] = []
        self._loop = 0.0
        self._first: float | None = None
        self._peak_span = 0
        self._polls: dict[str, tuple[int, float]] = {}  # of open polls: times asked, seconds
        self._agreed: set[str] = set()

    def events_before(self, second: float) -> None:
        """Let happen what lies before a chunk that ends at `second`."""
        while self._moments and self._moments[0][0] < second:
            self._happen(self._moments.pop(0)[1])

    def remaining_events(self) -> None:
        """Let happen what lies at the end of the clip or behind it. A poll ends with the clip."""
        end = self._session.time + AT_THE_END
        while self._moments:
            moment, event = self._moments.pop(0)
            if not (isinstance(event, Poll) and moment > end):
                self._happen(event, past_end=end < moment < float("inf"))
        self._unanswered()

    def took_in(self, update: Update, start: float) -> None:
        """Note an update."""
        self._first = start if self._first is None else self._first
        self._note_unit(start, update)
        self._updates.append(update.seconds)

    def record(self, setting: Setting, damage: str | None) -> Record:
        """All of it."""
        first = self._session.time if self._first is None else self._first
        return Record(
            item=self._item.id,
            clip=self._item.clip,
            setting=setting.name,
            answers=tuple(self._answers),
            loop_seconds=self._loop,
            update_ms=median(self._updates) * 1e3 if self._updates else None,
            clip_seconds=self._session.time - first,
            stats=self._session.stats().as_dict(),
            peak_span=self._peak_span,
            damage=damage,
        )

    def _happen(self, event: Event, past_end: bool = False) -> None:
        if isinstance(event, Note):
            time = self._session.time
            self._note_unit(time, self._session.append_text(event.text))
        elif isinstance(event, Question):
            answer = self._ask(event.id, event.prompt, event.max_tokens, event.watched, event.aside)
            self._answers.append(replace(answer, past_end=past_end))
        elif event.id not in self._agreed:
            self._poll(event)

    def _poll(self, poll: Poll) -> None:
        count, seconds = self._polls.get(poll.id, (0, 0.0))
        asked = self._ask(f"{poll.id}/{count}", poll.prompt, poll.max_tokens)
        count, seconds = count + 1, seconds + asked.seconds
        self._polls[poll.id] = count, seconds
        if poll.accepts.lower() in asked.text.lower():
            self._agreed.add(poll.id)
            answer = self._ask(poll.id, poll.then, poll.max_tokens)
            spent = seconds + answer.seconds
            self._answers.append(replace(answer, polls=count, seconds=spent))

    def _unanswered(self) -> None:
        """Polls that the model never agreed to have an answer without a reply."""
        for event in self._item.events:
            if isinstance(event, Poll) and event.id not in self._agreed:
                count, seconds = self._polls.get(event.id, (0, 0.0))
                self._answers.append(Answer(event.id, None, seconds=seconds, polls=count))

    def _ask(
        self,
        name: str,
        prompt: str,
        limit: int,
        watched: tuple[tuple[float, float], ...] = (),
        aside: bool = False,
    ) -> Answer:
        session = self._session
        kept = tuple(self._kept(start, stop) for start, stop in watched)
        seen, held = session.cache.history.tokens_seen, len(session.cache.history)
        seed = zlib.crc32(f"{self._sampling.seed or 0}/{self._item.id}/{name}".encode())
        words, tokens, finish = [], 0, None
        started = clock.perf_counter()
        first = 0.0
        for piece in session.ask(
            prompt, max_tokens=limit, sampling=replace(self._sampling, seed=seed), aside=aside
        ):
            first = first or clock.perf_counter() - started
            words.append(piece.text)
            tokens, finish = piece.generation_tokens, piece.finish_reason
        seconds = clock.perf_counter() - started
        self._loop += seconds
        self._measure()
        return Answer(
            question=name,
            reply="".join(words),
            asked=session.time,
            first_seconds=first,
            seconds=seconds,
            tokens=tokens,
            finish=finish,
            tokens_seen=seen,
            tokens_kept=held,
            kept=kept,
        )

    def _note_unit(self, start: float, update: Update) -> None:
        unit = self._session.cache.history.next_unit - 1
        self._seen.append(_Seen(unit, start, update.time, update.tokens))
        self._loop += update.seconds
        self._measure()

    def _measure(self) -> None:
        self._peak_span = max(self._peak_span, self._session.cache.state.table.physical_span)

    def _kept(self, start: float, stop: float) -> tuple[int, int]:
        """Tokens kept, and tokens that there were, of the units that touch `[start, stop)`.

        A text has no length: it counts where its moment lies in the range.
        """
        units = [
            seen
            for seen in self._seen
            if seen.start < stop and (seen.stop > start or start <= seen.start)
        ]
        held = np.isin(self._session.cache.history.cells["unit"], [seen.unit for seen in units])
        return int(np.count_nonzero(held)), sum(seen.tokens for seen in units)


def moments(events: tuple[Event, ...]) -> list[tuple[float, Event]]:
    """Events with their moments, sorted; a poll once for each time that it may be asked.

    A question without a moment gets infinity.
    """
    found: list[tuple[float, Event]] = []
    for event in events:
        if isinstance(event, Poll):
            count = int((event.until - event.at) / event.every + 1e-9) + 1
            found += [(event.at + k * event.every, event) for k in range(max(count, 0))]
        else:
            found.append((float("inf") if event.at is None else event.at, event))
    return sorted(found, key=lambda pair: pair[0])
