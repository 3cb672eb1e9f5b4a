"""A token of a reply: one pass of a full-size language model through the cache of a session."""

from __future__ import annotations

from omnitide.backend import Backend
from omnitide.bench.backbone import Backbone
from omnitide.bench.ceilings import Ceilings
from omnitide.bench.filled import FilledCache
from omnitide.bench.left import WORD, Left, just_before_a_cut
from omnitide.bench.packing import Packing
from omnitide.bench.peers import model_peers
from omnitide.bench.report import OURS, Row
from omnitide.bench.room import fit_layers, kv_bytes, weight_bytes
from omnitide.bench.settings import Course, Settings
from omnitide.bench.shapes import ModelShape
from omnitide.bench.timing import WARM_UP, Spread, wall
from omnitide.figures import ITEMSIZES
from omnitide.models.text_config import TextConfig
from omnitide.units import Unit, UnitBuilder, UnitKind

MS = 1e3


def run(
    backend: Backend, settings: Settings, ceilings: Ceilings, course: Course
) -> tuple[ModelShape, list[Row]]:
    """Measure each history. The shape that ran, and the rows of the report.

    Raises:
        CapacityError: Not one layer fits.
        ConfigError: A history that no stream comes to, or what the backend doesn't take.
    """
    settings.refuse_mass()
    settings.refuse_backend(backend)
    peers = model_peers(settings, backend, course)
    reply, itemsize = WARM_UP + settings.repeat, ITEMSIZES[backend.dtype]
    tokens = max(settings.histories) + reply
    shape = backend.run(
        fit_layers,
        backend,
        settings.shape,
        settings.layers,
        tokens,
        backend.prefill_step,
        course,
        settings.packing,
        settings.kv_bits,
    )
    course.tell(f"weights of {shape.name}, {shape.text.num_layers} layers")
    model = backend.run(Backbone, shape, backend, settings.seed, settings.packing)
    rows = []
    for history in settings.histories:
        for policy, layout in settings.choices:
            course.tell(f"a token after {history:,} cells, {policy}, {layout}")
            left = just_before_a_cut(settings, policy, layout, history)
            seconds = backend.run(_reply, model, left, settings)
            case = {"who": OURS, "policy": policy, "layout": layout, "history": history}
            num_bytes = work(shape.text, itemsize, history, settings.packing, settings.kv_bits)
            rows.append(_row(case, shape, seconds, ceilings, num_bytes))
    del model
    backend.run(backend.memory_free)  # gives the weights' memory back
    for peer in peers:
        for history, name, found in peer.times(shape, settings, settings.histories, 1):
            case = {"who": name, "policy": "full", "layout": "", "history": history}
            num_bytes = work(shape.text, itemsize, history, settings.packing)
            rows.append(_row(case, shape, found, ceilings, num_bytes))
    return shape, rows


def work(
    text: TextConfig,
    itemsize: int,
    history: int,
    packing: Packing | None = None,
    kv_bits: int | None = None,
) -> int:
    """Bytes that a token reads: weights, and K and V of the history as they are kept."""
    cell = kv_bytes(text, itemsize, kv_bits=kv_bits)
    return weight_bytes(text, itemsize, packing) + (history + 1) * cell


def reply_token(count: int) -> Unit:
    """A token of a reply after `count` others, as a model family's `reply_unit` makes it."""
    return UnitBuilder(first_step=count).text([WORD]).build(UnitKind.REPLY)


def _reply(model: Backbone, left: Left, settings: Settings) -> list[float]:
    """Seconds of each token of a reply, the first few left out."""
    count = WARM_UP + settings.repeat
    cache = FilledCache(model, left, count, settings.seed, settings.kv_bits)
    embedding = model.embeddings(1)
    model.backend.synchronize(embedding)
    cache.open_reply(None)
    seconds = [
        wall(model.backend, cache.extend, reply_token(index), embedding) for index in range(count)
    ]
    cache.close()
    cache.check_integrity()
    return seconds[WARM_UP:]


def _row(
    case: Row,
    shape: ModelShape,
    seconds: list[float],
    ceilings: Ceilings,
    num_bytes: int,
) -> Row:
    spread = Spread.of(seconds)
    floor = ceilings.floor(num_bytes)
    return {
        **case,
        "layers": shape.text.num_layers,
        **spread.named("ms", MS),
        "floor_ms": floor * MS,
        "ratio": spread.median / floor,
        "bytes": num_bytes,
        "tokens_per_s": 1 / spread.median,
    }
