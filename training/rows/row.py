"""A training row: streams one after another, each followed by the branches that ask about it.

A branch is a question with its answer that nobody else sees. It follows the end of a unit: its
positions go on from there, and it sees the stream up to there and itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.world.script import Picture, Sound

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Forgetting:
    """How much of a stream later tokens see.

    Attributes:
        recent: Newest units that are seen whole.
        sink: First tokens of each older picture and sound that stay; text and markers all do.
    """

    recent: int
    sink: int


@dataclass(frozen=True, slots=True)
class Row:
    """Arrays of fixed length, see `training.settings.Settings` for the lengths.

    Attributes:
        ids: Token ids; 0 behind the last document.
        positions: (3, tokens).
        document, branch: Which stream a token belongs to and which branch (0: the stream itself);
            -1 and -1 where there is nothing. Branches are counted through the row.
        unit: The unit during or after which a token comes; -1 for the system prefix.
        first, seen, horizon, own, kept: Who sees whom, see `rows.masks.Visibility`.
        label_places: Tokens whose next token is learned; the row's length where there is no label.
        label_ids, label_weights, label_answers: That token, its weight, and its answer's index.
        answer_tasks, answer_distances: By answer: index in `TASKS`, distance in units; -1: none.
        picture_places, sound_places: (units, 32) and (units, 50), places of a unit's tokens; the
            row's length for a unit that is not there.
        streams: By unit, the document it belongs to; a number of its own where there is none.
        pictures, sounds: By unit.
        num_units, num_tokens: That are there.
    """

    ids: Ints
    positions: Ints
    document: Ints
    branch: Ints
    unit: Ints
    first: Ints
    seen: Ints
    horizon: Ints
    own: Ints
    kept: NDArray[np.bool_]
    label_places: Ints
    label_ids: Ints
    label_weights: NDArray[np.float32]
    label_answers: Ints
    answer_tasks: Ints
    answer_distances: Ints
    picture_places: Ints
    sound_places: Ints
    streams: Ints
    pictures: tuple[Picture, ...]
    sounds: tuple[Sound, ...]
    num_units: int
    num_tokens: int
