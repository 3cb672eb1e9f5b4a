"""StreamingVLM's windows: long for text, short for pictures, with sinks of text (Xu et al., 2026).

Pictures, and sound, which that model does not have, stay for `vision_window` seconds of the stream
and then leave a unit at a time, with the markers around them; of text the first `text_sink` and the
newest `text_window` tokens stay. Markers of turns count as text.

The published windows (16 s, 512 and 512 tokens) were made without a bound on tokens. Under the low
watermark they shrink: pictures and sound first, then the window of text, then its sinks.

The windows of text begin and end at any token, so turns may be torn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnitide.config import RetentionConfig
from omnitide.history import History
from omnitide.retention import Mask, Mass, protected
from omnitide.runs import run_lengths
from omnitide.units import Cells, Modality, Role, UnitKind


class StreamingVLM:
    """Sinks and a window of text, a shorter window of pictures and sound.

    The newest unit stays whole. The target is met unless that and the protected cells exceed it.
    """

    name = "streaming-vlm"
    bounded = True
    needs_mass = False

    def select(self, history: History, config: RetentionConfig, mass: Mass | None = None) -> Mask:
        """Which cells stay; see the module."""
        starts = history.unit_starts()
        lengths = run_lengths(starts, len(history))
        held = protected(history)
        is_media, seconds = _media_units(history, starts)
        seen = _pictures_and_sound(history.cells, np.repeat(is_media, lengths))
        text = np.flatnonzero(~seen & ~held)
        sink = np.zeros(len(history), np.bool_)
        sink[text[: config.text_sink]] = True
        window = np.zeros(len(history), np.bool_)
        window[text[max(len(text) - config.text_window, 0) :]] = True

        # Seconds of pictures and sound from a unit's beginning to the end of the stream.
        back = np.cumsum(seconds[::-1])[::-1]
        watched = seen & np.repeat(back <= config.vision_window, lengths)
        fixed = held.copy()
        fixed[starts[-1] :] = True  # the newest unit
        keep = fixed | sink | window | watched

        loose = np.add.reduceat(watched & ~fixed, starts, dtype=np.int64)
        before = np.count_nonzero(keep) - np.concatenate([[0], np.cumsum(loose)[:-1]])
        too_many = np.repeat(before > config.low_watermark, lengths)
        keep &= ~(watched & ~fixed & too_many)

        excess = max(int(np.count_nonzero(keep)) - config.low_watermark, 0)
        leaving = np.concatenate(
            [np.flatnonzero(window & ~sink & ~fixed), np.flatnonzero(sink & ~fixed)[::-1]]
        )
        keep[leaving[:excess]] = False
        return keep

    def survivors(self, cells: Cells, config: RetentionConfig) -> Mask:
        """Text: it leaves too, but long after the pictures and the sound beside it."""
        has_media = bool((cells["modality"] != Modality.TEXT).any())
        return ~_pictures_and_sound(cells, np.full(len(cells), has_media))


def _pictures_and_sound(cells: Cells, of_media: Mask) -> Mask:
    """Cells that leave with the pictures: these, sound, and the markers of units of media."""
    mask: Mask = (cells["modality"] != Modality.TEXT) | (
        (cells["role"] == Role.BOUNDARY) & of_media
    )
    return mask


def _media_units(history: History, starts: NDArray[np.int64]) -> tuple[Mask, NDArray[np.float64]]:
    """Of each unit that has cells, whether it is media and how many seconds it covers."""
    records = {u.id: u for u in history.units}
    units = [records[i] for i in history.cells["unit"][starts].tolist()]
    return (
        np.array([u.kind == UnitKind.MEDIA for u in units], np.bool_),
        np.array([u.seconds for u in units], np.float64),
    )
