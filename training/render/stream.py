"""A script as a clip that can be followed: its pictures and sounds as chunks, without encoding.

Pictures and samples are made once in a process for the stream that was opened last, however many
sessions follow it, and always with the same arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Self

from omnitide.config import MediaOptions
from omnitide.errors import ConfigError
from omnitide.media.chunk import MediaChunk
from training.world.script import Script
from training.world.unit import FRAMES, SECONDS

if TYPE_CHECKING:
    from training.render.pictures import Painter
    from training.render.sounds import Player


@dataclass(frozen=True, slots=True)
class MadeStream:
    """A `ClipSource` that paints and plays a script.

    Attributes:
        script: What is shown and said.
        bank: Path of the bank of speech, photographs and letters.
    """

    script: Script
    bank: str

    def open(self, options: MediaOptions) -> OpenMadeStream:
        """Its chunks, one a unit.

        Raises:
            ConfigError: The options cut a stream otherwise than scripts are cut.
        """
        if (options.chunk_seconds, options.fps) != (SECONDS, FRAMES / SECONDS):
            raise ConfigError(
                f"[recall] a unit has {SECONDS} s and {FRAMES / SECONDS:g} frames a second, got "
                f"{options.chunk_seconds:g} s and {options.fps:g}; take another benchmark"
            )
        return OpenMadeStream(self)


class OpenMadeStream:
    """A stream being followed, an `OpenClip`. Nothing of it can be broken."""

    broken: str | None = None
    damage: str | None = None

    def __init__(self, stream: MadeStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[MediaChunk]:
        return iter(chunks_of(self._stream))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is held."""


@lru_cache(maxsize=1)
def chunks_of(stream: MadeStream) -> tuple[MediaChunk, ...]:
    """All chunks of a stream; the same objects until another stream is asked for."""
    painter, player = _makers(stream.bank)
    frames = painter.paint(stream.script.pictures).cpu().numpy()
    samples = player.play(stream.script.sounds).cpu().numpy()
    return tuple(
        MediaChunk(
            float(unit * SECONDS),
            float((unit + 1) * SECONDS),
            tuple(frames[unit]),
            tuple(unit * SECONDS + frame * SECONDS / FRAMES for frame in range(FRAMES)),
            samples[unit],
        )
        for unit in range(len(frames))
    )


@lru_cache(maxsize=1)
def _makers(bank: str) -> tuple[Painter, Player]:
    """Painter and player of a bank. PyTorch is loaded here, not before it is needed."""
    import torch

    from training.bank.bank import load_bank
    from training.render.pictures import Painter
    from training.render.sounds import Player

    torch.set_num_threads(1)  # one worker, one core
    loaded = load_bank(bank)
    return Painter(loaded, "cpu"), Player(loaded, "cpu")
