"""What a benchmark is to measure, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

from omnitide.backend import Backend
from omnitide.backends.eight_bit import BITS
from omnitide.bench.packing import Packing
from omnitide.bench.shapes import ModelShape
from omnitide.config import RetentionConfig
from omnitide.errors import ConfigError
from omnitide.layouts import check_servable
from omnitide.models.names import text_tensors
from omnitide.policies import POLICIES, make_policy
from omnitide.simulation.shapes import make_shape as make_stream

LIVE = ("scattered", "dense", "half-dead", "interleaved")
"""Where live cells may lie; see `cells`."""

PEERS = {
    "torch": ("torch",),
    "flashinfer": ("flashinfer-python",),
    "mlx-lm": ("mlx-lm", "mlx"),
}
"""Programs to measure beside, see `peers`, and the packages whose versions a report names."""

PEERS_IN_BITS = ("mlx-lm",)
"""Those whose matrices can be quantised like ours."""

MOST_CELLS = 1 << 20
"""Longest history; one layer of it takes a gigabyte at 4 KV heads of 128 in half precision."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of all benchmarks; each reads what concerns it.

    Attributes:
        shape: Of the model.
        packing: How the matrices of `shape` are quantised. None: they are not.
        kv_bits: Of packed keys and values. None: they have the backend's dtype.
        layers: Layers to run. None: as many as the shape has, if they fit.
        histories: Lengths in cells.
        queries: New tokens of attention and of an update.
        live: Where the live cells lie, by `LIVE`.
        rows: Rows of a migration.
        policies, layouts: Names; each pair is measured.
        config: Watermarks and budgets.
        stream: Kind of stream, a name of `simulation.shapes`.
        minutes: Of a session.
        split: Whether an update is taken apart.
        peers: Other programs, by `PEERS`.
        repeat: Timed calls.
        seed: Of random numbers.
        warm: Whether caches may hold what a call reads.
    """

    shape: ModelShape
    packing: Packing | None = None
    kv_bits: int | None = None
    layers: int | None = None
    histories: tuple[int, ...] = (2048,)
    queries: tuple[int, ...] = (1,)
    live: tuple[str, ...] = ("scattered",)
    rows: tuple[int, ...] = (2000,)
    policies: tuple[str, ...] = ("omnipick",)
    layouts: tuple[str, ...] = ("predictive",)
    config: RetentionConfig = field(default_factory=RetentionConfig)
    stream: str = "qwen-448"
    minutes: int = 60
    split: bool = False
    peers: tuple[str, ...] = ()
    repeat: int = 20
    seed: int = 0
    warm: bool = False

    def __post_init__(self) -> None:
        counts = {
            "--history": self.histories,
            "--queries (of update: --tokens)": self.queries,
            "--rows": self.rows,
        }
        for option, values in counts.items():
            for value in values:
                if not 1 <= value <= MOST_CELLS:
                    raise ConfigError(
                        f"[bench] {option} must be from 1 to {MOST_CELLS:,}, got {value:,}"
                    )
        for option, count in (
            ("--layers", self.layers),
            ("--repeat", self.repeat),
            ("--minutes", self.minutes),
        ):
            if count is not None and count < 1:
                raise ConfigError(f"[bench] {option} must be at least 1, got {count}")
        if self.seed < 0:
            raise ConfigError(f"[bench] --seed must be at least 0, got {self.seed}")
        if self.layers is not None and self.layers > self.shape.text.num_layers:
            raise ConfigError(
                f"[bench] {self.shape.name} has {self.shape.text.num_layers} layers, got --layers "
                f"{self.layers}"
            )
        for name in self.live:
            if name not in LIVE:
                raise ConfigError(f"[bench] --live must be one of {', '.join(LIVE)}; got {name!r}")
        for name in self.peers:
            if name not in PEERS:
                raise ConfigError(f"[bench] --peer must be one of {', '.join(PEERS)}; got {name!r}")
        if self.packing is not None:
            self._check_packing(self.packing)
        if self.kv_bits is not None:
            self._check_kv_bits(self.kv_bits)
        make_stream(self.stream)
        for policy in self.policies:
            make_policy(policy)
        for layout in self.layouts:
            check_servable(layout)

    def _check_packing(self, packing: Packing) -> None:
        for name in self.peers:
            if name not in PEERS_IN_BITS:
                raise ConfigError(
                    f"[bench] --peer {name} has no quantised matrices like ours, only "
                    f"{', '.join(PEERS_IN_BITS)} has; leave it out, or --q-bits"
                )
        for shape in text_tensors(self.shape.text).values():
            if len(shape) == 2:
                packing.refuse(shape[1])

    def _check_kv_bits(self, kv_bits: int) -> None:
        if kv_bits != BITS:
            raise ConfigError(
                f"[bench] --kv-bits must be {BITS}, got {kv_bits}; leave it out for unpacked ones"
            )
        if self.peers:
            raise ConfigError(
                f"[bench] --peer {','.join(self.peers)}: no peer packs keys and values like ours; "
                "leave out --peer or --kv-bits"
            )

    @property
    def packed(self) -> str:
        """What is packed, in words; empty where nothing is."""
        matrices = "" if self.packing is None else str(self.packing)
        cells = "" if self.kv_bits is None else f"keys and values in {self.kv_bits} bits"
        return ", ".join(filter(None, (matrices, cells)))

    @property
    def choices(self) -> tuple[tuple[str, str], ...]:
        """Policies by layouts; one layout for a policy that never deletes, as nothing moves."""
        pairs = product(self.policies, self.layouts)
        return tuple(
            dict.fromkeys((p, q if POLICIES[p].bounded else self.layouts[0]) for p, q in pairs)
        )

    def refuse_backend(self, backend: Backend) -> None:
        """Refuse a backend that can't do what is asked.

        Raises:
            ConfigError: It takes no such weights, or doesn't pack keys and values.
        """
        if self.packing is not None:
            self.packing.refuse_backend(backend)
        if self.kv_bits is not None and self.kv_bits not in backend.kv_bits:
            raise ConfigError(
                f"[bench] backend {backend.name} doesn't pack keys and values; leave out --kv-bits"
            )

    def refuse_mass(self) -> None:
        """Refuse policies that decide by attention.

        Raises:
            ConfigError: There is one.
        """
        for policy in self.policies:
            if POLICIES[policy].needs_mass:
                raise ConfigError(
                    f"[bench] policy {policy} decides by the attention of a model, and histories "
                    "are made without one here; take another, or omnitide bench session"
                )


@dataclass(slots=True)
class Course:
    """What a benchmark says while it runs.

    Attributes:
        notes: For people, in the report.
        tell: Called with what is measured now.
    """

    notes: list[str] = field(default_factory=list)
    tell: Callable[[str], None] = lambda text: None

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)
