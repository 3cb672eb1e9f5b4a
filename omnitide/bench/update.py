"""An update of a stream: a unit through a full-size language model, and the eviction after it.

`history` is what the stream has had before: a policy that cuts holds far less. Where one cuts, the
stream goes on from update to update, so that evictions come as they come; under full context each
update starts from the same history.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product

from omnitide.backend import Array, Backend
from omnitide.bench.backbone import Backbone
from omnitide.bench.ceilings import Ceilings
from omnitide.bench.filled import FilledCache
from omnitide.bench.left import after, media
from omnitide.bench.packing import Packing
from omnitide.bench.peers import model_peers
from omnitide.bench.report import OURS, Row
from omnitide.bench.room import fit_layers, kv_bytes, matrix_flops, weight_bytes
from omnitide.bench.settings import Course, Settings
from omnitide.bench.shapes import ModelShape
from omnitide.bench.split import TimedBackend
from omnitide.bench.timing import WARM_UP, Spread
from omnitide.figures import ITEMSIZES
from omnitide.model import EncodedUnit
from omnitide.models.text_config import TextConfig
from omnitide.policies import POLICIES

MS = 1e3

MOST_WARM_UP = 16
"""Updates in which an eviction is waited for, so that its kernels are compiled too."""


@dataclass(slots=True)
class Measured:
    """What some updates took, and what they found and did.

    Attributes:
        seconds: Of each update.
        live: Cells before each update.
        evictions, rows_moved: Of all updates.
        parts: Seconds of all updates by part (`split.PARTS`), if they were taken apart.
    """

    seconds: list[float]
    live: list[int]
    evictions: int
    rows_moved: int
    parts: dict[str, float] | None = None


def run(
    backend: Backend, settings: Settings, ceilings: Ceilings, course: Course
) -> tuple[ModelShape, list[Row]]:
    """Measure each case. The shape that ran, and the rows of the report.

    Raises:
        CapacityError: Not one layer fits.
        ConfigError: Watermarks that can't be met, or what the backend doesn't take.
    """
    settings.refuse_mass()
    settings.refuse_backend(backend)
    peers = model_peers(settings, backend, course)
    whole = any(not POLICIES[policy].bounded for policy, _ in settings.choices) or peers
    longest = max(settings.histories) if whole else settings.config.high_watermark
    tokens = longest + 2 * max(settings.queries)
    at_once = min(max(settings.queries), backend.prefill_step)
    shape = backend.run(
        fit_layers,
        backend,
        settings.shape,
        settings.layers,
        tokens,
        at_once,
        course,
        settings.packing,
        settings.kv_bits,
    )
    course.tell(f"weights of {shape.name}, {shape.text.num_layers} layers")
    model = backend.run(Backbone, shape, backend, settings.seed, settings.packing)
    rows = []
    for count, history in product(settings.queries, settings.histories):
        for policy, layout in settings.choices:
            course.tell(f"{count:,} tokens after {history:,}, {policy}, {layout}")
            found = _Update(model, settings, policy, layout, count, history).measure()
            case = {"who": OURS, "policy": policy, "layout": layout, "history": history}
            rows.append(_row(case, count, shape, found, ceilings, backend.dtype, settings))
    del model
    backend.run(backend.memory_free)  # gives the weights' memory back
    for peer, count in product(peers, settings.queries):
        for history, name, seconds in peer.times(shape, settings, settings.histories, count):
            case = {"who": name, "policy": "full", "layout": "", "history": history}
            found = Measured(seconds, [history], 0, 0)
            rows.append(_row(case, count, shape, found, ceilings, backend.dtype, settings))
    return shape, rows


def work(
    text: TextConfig,
    itemsize: int,
    tokens: int,
    history: float,
    packing: Packing | None = None,
    kv_bits: int | None = None,
) -> tuple[float, float]:
    """Bytes (weights; K and V once, as they are kept) and operations of a unit after cells."""
    pairs = tokens * history + tokens * (tokens + 1) / 2
    pairs_of_last = history + tokens  # the last layer attends for the last token alone
    all_pairs = pairs * (text.num_layers - 1) + pairs_of_last
    attention = 4 * all_pairs * text.num_heads * text.head_dim
    num_bytes: float = weight_bytes(text, itemsize, packing)
    num_bytes += (history + tokens) * kv_bytes(text, itemsize, kv_bits=kv_bits)
    return num_bytes, matrix_flops(text, tokens) + attention


class _Update:
    """One case: a stream that has come to some length. Its updates run on the backend's thread."""

    def __init__(
        self,
        model: Backbone,
        settings: Settings,
        policy: str,
        layout: str,
        tokens: int,
        history: int,
    ) -> None:
        self.model, self.settings, self.backend = model, settings, model.backend
        self.unit, self.bounded = media(tokens), POLICIES[policy].bounded
        left = after(settings, policy, layout, tokens, history)
        self.embeddings: Array = self.backend.run(model.embeddings, tokens)
        # Room for the pools' growth is made at once: a session's would have grown long ago.
        room = 3 * tokens + (settings.config.high_watermark if self.bounded else 0)
        self.cache: FilledCache = self.backend.run(
            FilledCache, model, left, room, settings.seed, settings.kv_bits
        )

    def measure(self) -> Measured:
        """Warm up, time updates, and time them once more part by part if that was asked for."""
        run = self.backend.run
        for count in range(MOST_WARM_UP):
            before = self.cache.state
            evicted = run(self._updates, 1).evictions
            self._return(before)
            if count + 1 >= WARM_UP and (evicted or not self.bounded):
                break
        start = self.cache.state
        found = Measured([], [], 0, 0)
        for _ in range(self.settings.repeat):
            before = self.cache.state
            _add(found, run(self._updates, 1))
            self._return(before)
        if self.settings.split:
            self.cache.state = start
            found.parts = run(self._parts)
        run(self.cache.check_integrity)
        return found

    def _return(self, before: object) -> None:
        """Under full context, forget the update."""
        if not self.bounded:
            self.cache.state = before  # type: ignore[assignment]

    def _updates(self, count: int) -> Measured:
        cache, backend = self.cache, self.backend
        found = Measured([], [], 0, 0)
        for _ in range(count):
            state = cache.state
            started = time.perf_counter()
            cache.append(EncodedUnit(self.unit, self.embeddings))
            cache.evict()
            backend.synchronize()
            found.seconds.append(time.perf_counter() - started)
            found.live.append(len(state.history))
            found.evictions += cache.state.evictions - state.evictions
            found.rows_moved += cache.state.rows_moved - state.rows_moved
        return found

    def _parts(self) -> dict[str, float]:
        """Seconds by part of the same updates again."""
        timer, backend = TimedBackend.around(self.backend)
        self.cache.use(self.model.on(backend))
        try:
            for _ in range(self.settings.repeat):
                before = self.cache.state
                self._updates(1)
                self._return(before)
        finally:
            self.cache.use(self.model)
        return timer.seconds


def _add(found: Measured, more: Measured) -> None:
    found.seconds += more.seconds
    found.live += more.live
    found.evictions += more.evictions
    found.rows_moved += more.rows_moved


def _row(
    case: Row,
    tokens: int,
    shape: ModelShape,
    found: Measured,
    ceilings: Ceilings,
    dtype: str,
    settings: Settings,
) -> Row:
    spread = Spread.of(found.seconds)
    live = sum(found.live) / len(found.live)
    packed = settings.packing, settings.kv_bits  # no peer is measured beside the latter
    num_bytes, flops = work(shape.text, ITEMSIZES[dtype], tokens, live, *packed)
    floor = ceilings.floor(num_bytes, flops)
    row = {
        **case,
        "tokens": tokens,
        "live": live,
        "layers": shape.text.num_layers,
        **spread.named("ms", MS),
        "floor_ms": floor * MS,
        "ratio": spread.median / floor,
        "bytes": num_bytes,
        "flops": flops,
        "evictions": found.evictions,
        "rows_moved": found.rows_moved,
    }
    if found.parts is not None:
        count = len(found.seconds)
        mean = sum(found.seconds) / count
        parts = {part: seconds / count for part, seconds in found.parts.items()}
        row |= {f"{part}_ms": seconds * MS for part, seconds in parts.items()}
        row |= {"mean_ms": mean * MS, "rest_ms": (mean - sum(parts.values())) * MS}
    return row
