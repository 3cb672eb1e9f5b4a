"""What a benchmark found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from omnitide.bench.ceilings import Ceilings
from omnitide.bench.machine import Machine
from omnitide.bench.settings import Settings
from omnitide.bench.shapes import ModelShape

OURS = "omnitide"
"""`who` of our own rows."""

Row = dict[str, Any]
"""A row by field; times carry their unit in the name, `_p10` and `_p90` beside the median."""


@dataclass(frozen=True, slots=True)
class Report:
    """Rows and all that is needed to read them.

    Attributes:
        bench: Name of the benchmark.
        machine: Where it ran.
        ceilings: What the device can do at best.
        shape: Of the model as it ran, perhaps with fewer layers than published.
        settings: What was asked for.
        notes: What a reader should know.
        rows: One for each case and program.
    """

    bench: str
    machine: Machine
    ceilings: Ceilings
    shape: ModelShape
    settings: Settings
    notes: Sequence[str]
    rows: Sequence[Row]

    def as_json(self) -> str:
        """One JSON object in ASCII."""
        text, packing = self.shape.text, self.settings.packing
        found = {
            "bench": self.bench,
            "machine": asdict(self.machine),
            "ceilings": asdict(self.ceilings),
            "shape": {
                "name": self.shape.name,
                "layers": text.num_layers,
                "heads": text.num_heads,
                "kv_heads": text.num_kv_heads,
                "head_dim": text.head_dim,
                "hidden_size": text.hidden_size,
                "intermediate_size": text.intermediate_size,
                "vocab_size": text.vocab_size,
                "quantization": None if packing is None else asdict(packing),
            },
            "settings": {
                "repeat": self.settings.repeat,
                "seed": self.settings.seed,
                "warm": self.settings.warm,
                "kv_bits": self.settings.kv_bits,
                "stream": self.settings.stream,
                "high_watermark": self.settings.config.high_watermark,
                "low_watermark": self.settings.config.low_watermark,
            },
            "notes": list(self.notes),
            "rows": [{k: _short(v) for k, v in row.items()} for row in self.rows],
        }
        return json.dumps(found, indent=2, allow_nan=False)


def _short(value: Any) -> Any:
    """Six digits of a time, which is more than it has."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
