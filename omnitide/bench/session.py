"""A stream of minutes or hours through the cache of a session: is it as fast at its end?

Units are those of a stream shape; embeddings are random, so encoders, decoding of media and
sampling are not in the times. Replies are fed token by token. The first units run once beforehand,
in a cache of their own, so that kernels are compiled.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from omnitide.backend import Array, Backend
from omnitide.bench.backbone import Backbone
from omnitide.bench.ceilings import Ceilings
from omnitide.bench.decode import reply_token
from omnitide.bench.report import OURS, Row
from omnitide.bench.room import fit_layers
from omnitide.bench.settings import Course, Settings
from omnitide.bench.shapes import ModelShape
from omnitide.cache import BoundedCache
from omnitide.capacity import Capacity, plan_capacity
from omnitide.config import RetentionConfig
from omnitide.layouts import make_layout
from omnitide.model import EncodedUnit, OmniModel
from omnitide.pages import PAGE_SIZE
from omnitide.policies import POLICIES, make_policy
from omnitide.simulation.shapes import make_shape
from omnitide.units import Unit, UnitKind

MINUTE = 60.0

FIRST = 16
"""Units of the warm-up."""

MS = 1e3


@dataclass(slots=True)
class Minute:
    """Updates and tokens of a minute, seconds each.

    Attributes:
        updates: Of units of media and of words.
        tokens: Of replies.
        peak_memory: Bytes at its end.
    """

    updates: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    peak_memory: int = 0


def run(
    backend: Backend, settings: Settings, ceilings: Ceilings, course: Course
) -> tuple[ModelShape, list[Row]]:
    """Follow the stream once for each policy and layout.

    Raises:
        CapacityError: Not one layer fits.
        ConfigError: Watermarks that can't be met.
    """
    units = list(stream_units(settings))
    plans = {
        (policy, layout): planned(settings, policy, units) for policy, layout in settings.choices
    }
    held = max(capacity.pages for _, capacity in plans.values()) * PAGE_SIZE
    if any(not POLICIES[policy].bounded for policy, _ in plans):
        held = max(held, 2 * sum(len(unit) for unit in units))  # pools grow by doubling
    shape = backend.run(
        fit_layers, backend, settings.shape, settings.layers, held, backend.prefill_step, course
    )
    course.tell(f"weights of {shape.name}, {shape.text.num_layers} layers")
    model = backend.run(Backbone, shape, backend, settings.seed)
    rows = []
    for (policy, layout), (config, capacity) in plans.items():
        course.tell(f"{settings.minutes} minutes of {settings.stream}, {policy}, {layout}")
        session = _Session(model, policy, layout, config, capacity, units)
        session.warm_up()
        for _ in range(settings.repeat):
            backend.run(session.begin)
            session.follow(session.rest)
        rows.append(session.row(policy, layout, settings))
    return shape, rows


def stream_units(settings: Settings) -> Iterator[Unit]:
    """The prefix and the units that start before the last minute ends; only the first one has no
    time."""
    shape = make_shape(settings.stream)
    yield shape.system()
    end = settings.minutes * MINUTE
    units = shape.endless(np.random.default_rng(settings.seed))
    yield from takewhile(lambda unit: (unit.time or 0.0) < end, units)


def planned(settings: Settings, policy: str, units: list[Unit]) -> tuple[RetentionConfig, Capacity]:
    """Watermarks and capacity of the stream, as a session plans them.

    Raises:
        ConfigError: The numbers can't be met.
    """
    prefix, *rest = units
    replies = [len(unit) for unit in rest if unit.kind == UnitKind.REPLY]
    others = [len(unit) for unit in rest if unit.kind != UnitKind.REPLY]
    bounded = POLICIES[policy].bounded
    return plan_capacity(
        settings.config,
        bounded,
        len(prefix),
        max(others, default=1),
        max(replies, default=1),
        None,
    )


class _Session:
    """The life of a session without media: append, cut, reply."""

    def __init__(
        self,
        model: Backbone,
        policy: str,
        layout: str,
        config: RetentionConfig,
        capacity: Capacity,
        units: list[Unit],
    ) -> None:
        self.model, self.backend = model, model.backend
        self.made = (make_policy(policy), make_layout(layout), config, capacity)
        self.prefix, self.rest = units[0], units[1:]
        longest = max(len(unit) for unit in units)
        self.embeddings: Array = self.backend.run(model.embeddings, longest)
        self.minutes: dict[int, Minute] = {}
        self.total = 0.0
        self.cache: BoundedCache

    def begin(self) -> None:
        """A new cache with the prefix in it."""
        stands_in: OmniModel = self.model  # type: ignore[assignment]
        self.cache = BoundedCache(stands_in, *self.made)
        self.cache.append(self._encoded(self.prefix))

    def warm_up(self) -> None:
        """Follow the first units and forget it."""
        self.backend.run(self.begin)
        self.follow(self.rest[:FIRST])
        self.minutes.clear()

    def follow(self, units: list[Unit]) -> None:
        """Take units in."""
        self.total = 0.0
        for unit in units:
            minute = self.minutes.setdefault(int((unit.time or 0.0) // MINUTE), Minute())
            self.backend.run(self._take, unit, minute)
        self.backend.run(self.cache.check_integrity)

    def _take(self, unit: Unit, minute: Minute) -> None:
        if unit.kind == UnitKind.REPLY:
            self._reply(len(unit), minute)
        else:
            started = time.perf_counter()
            self.cache.append(self._encoded(unit))
            if unit.kind != UnitKind.PROMPT:  # what is asked about must be seen
                self.cache.evict()
            self.backend.synchronize()
            seconds = time.perf_counter() - started
            self.total += seconds
            if unit.kind != UnitKind.PROMPT:
                minute.updates.append(seconds)
        minute.peak_memory = max(minute.peak_memory, self.backend.peak_memory())

    def _reply(self, count: int, minute: Minute) -> None:
        embedding, cache = self.embeddings[:1], self.cache
        cache.open_reply(None)
        for index in range(count):
            started = time.perf_counter()
            cache.extend(reply_token(index), embedding)
            self.backend.synchronize()
            minute.tokens.append(time.perf_counter() - started)
            self.total += minute.tokens[-1]
        cache.close()
        cache.evict()

    def _encoded(self, unit: Unit) -> EncodedUnit:
        return EncodedUnit(unit, self.embeddings[: len(unit)])

    def row(self, policy: str, layout: str, settings: Settings) -> Row:
        """The figures of all that was followed."""
        timed = {number: m for number, m in sorted(self.minutes.items()) if m.updates}
        medians = {number: float(np.median(m.updates)) for number, m in timed.items()}
        first, last = min(medians), max(medians)
        tokens = [second for m in timed.values() for second in m.tokens]
        state, pools = self.cache.state, self.cache.pools
        return {
            "who": OURS,
            "policy": policy,
            "layout": layout,
            "stream": settings.stream,
            "minutes": settings.minutes,
            "layers": self.model.spec.num_layers,
            "units": state.history.next_unit,
            "updates": sum(len(m.updates) for m in timed.values()),
            "tokens_seen": state.history.tokens_seen,
            "tokens_kept": len(state.history),
            "first_ms": medians[first] * MS,
            "last_ms": medians[last] * MS,
            "last_to_first": medians[last] / medians[first],
            "decode_ms": float(np.median(tokens)) * MS if tokens else None,
            "total_s": self.total,
            "first_memory": timed[first].peak_memory,
            "last_memory": timed[last].peak_memory,
            "pool_bytes": pools.nbytes,
            "evictions": state.evictions,
            "rows_moved": state.rows_moved,
            "minute_ms": [medians[number] * MS for number in timed],
        }
