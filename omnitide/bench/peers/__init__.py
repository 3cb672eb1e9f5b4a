"""Other programs, measured beside ours on equal shapes where they are installed.

A peer that is missing, or refuses a shape, is a note in the report and no error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from omnitide.backend import Backend
from omnitide.bench.settings import Course, Settings
from omnitide.bench.shapes import ModelShape


class AttentionPeer(Protocol):
    """Dense attention of another program over one layer's cells."""

    name: str

    def times(self, settings: Settings, history: int, queries: int) -> list[float] | None:
        """Seconds of each repetition. None: it refused, which is noted."""
        ...


class ModelPeer(Protocol):
    """A decoder of the same sizes in another program, with a contiguous cache."""

    def times(
        self, shape: ModelShape, settings: Settings, histories: Sequence[int], queries: int
    ) -> Iterator[tuple[int, str, list[float]]]:
        """For each history and way of running it: the history, a name, seconds of repetitions."""
        ...


def attention_peers(settings: Settings, backend: Backend, course: Course) -> list[AttentionPeer]:
    """Those of `settings.peers` that are installed and run on the backend's device."""
    found: list[AttentionPeer] = []
    for name in settings.peers:
        if name not in ("torch", "flashinfer"):
            course.note(f"peer {name} is left out: its attention is not measured on its own")
            continue
        try:
            if name == "torch":
                from omnitide.bench.peers import torch_attention

                found += torch_attention.peers(backend, course)
            else:
                from omnitide.bench.peers import flashinfer_attention

                found += flashinfer_attention.peers(backend, course)
        except ImportError as error:
            course.note(f"peer {name} is left out: it can't be imported ({error})")
    return found


def model_peers(settings: Settings, backend: Backend, course: Course) -> list[ModelPeer]:
    """Those of `settings.peers` that run a whole decoder."""
    found: list[ModelPeer] = []
    for name in settings.peers:
        if name == "flashinfer":
            course.note(f"peer {name} is left out: it has kernels of attention, and no decoder")
            continue
        try:
            if name == "torch":
                from omnitide.bench.peers import torch_decoder

                found += torch_decoder.peers(backend, course)
            else:
                from omnitide.bench.peers import mlx_lm_decoder

                found += mlx_lm_decoder.peers(backend, course)
        except ImportError as error:
            course.note(f"peer {name} is left out: it can't be imported ({error})")
    return found
