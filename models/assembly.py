"""Embeddings of a unit from those of its text, pictures and sound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array, Backend
from omnitide.model import EncodedUnit
from omnitide.units import Modality, Unit


def assemble(
    backend: Backend,
    unit: Unit,
    embed: Callable[[NDArray[np.int32]], Array],
    pictures: Array | None = None,
    sounds: Array | None = None,
) -> EncodedUnit:
    """Put the embeddings of picture, sound and text where the unit's cells say.

    Args:
        backend: Of the arrays.
        unit: Its image and audio cells are in the order of the encoded arrays.
        embed: Embeddings of token ids.
        pictures: Shape (num_image_cells, hidden_size), None where there are none.
        sounds: Shape (num_audio_cells, hidden_size), None where there are none.
    """
    modality = unit.cells["modality"]
    sources = [embed(unit.cells["token"][modality == Modality.TEXT])]
    sources += [part for part in (pictures, sounds) if part is not None]
    if len(sources) == 1:
        return EncodedUnit(unit, sources[0])
    # Text comes first in the sources, then image, then audio, as the enumeration counts.
    rows = np.empty(len(unit), np.int64)
    rows[np.argsort(modality, kind="stable")] = np.arange(len(unit))
    return EncodedUnit(unit, backend.take(backend.concat(sources), rows))
