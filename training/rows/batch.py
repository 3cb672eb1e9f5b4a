"""Rows side by side: what the model is given for one step."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.render import pictures, sounds
from training.rows.masks import Visibility
from training.rows.row import Row


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of equal length. Places count through all rows: row * tokens + place.

    Attributes:
        ids: int64, (rows, tokens).
        positions: int32, (rows, 3, tokens).
        visibility: Who sees whom.
        label_places: int64, (rows * row_labels,), tokens whose next token is learned.
        label_ids: int64, that next token.
        label_weights: float32, 0 where there is no label.
        label_answers: int64, which answer it belongs to, counted through all rows.
        answer_tasks, answer_distances: int64, (rows * row_answers,), -1 where there is no answer;
            the distance is -1 as well where it means nothing.
        picture_places, sound_places: int64, (rows * row_units, 32) and (..., 50), where each unit's
            embeddings go; one past the last token for a unit that is not there.
        streams: int64, (rows * row_units,), which stream a unit belongs to; units of one stream
            are neighbours, oldest first.
        pictures, sounds: What the units show and sound like, read into arrays by name.
        num_units: Units that are there.
    """

    ids: Tensor
    positions: Tensor
    visibility: Visibility
    label_places: Tensor
    label_ids: Tensor
    label_weights: Tensor
    label_answers: Tensor
    answer_tasks: Tensor
    answer_distances: Tensor
    picture_places: Tensor
    sound_places: Tensor
    streams: Tensor
    pictures: dict[str, NDArray[Any]]
    sounds: dict[str, NDArray[Any]]
    num_units: int

    def to(self, device: torch.device) -> Batch:
        """The same with its tensors on a device; the copies may still be under way."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """The same in pinned memory, from where it is copied to a GPU without waiting."""
        return self._mapped(lambda tensor: tensor.pin_memory())

    def packed(self) -> bytes:
        """For another process. Plain bytes need no shared memory, of which machines have little."""
        return pickle.dumps(self._mapped(lambda tensor: tensor.numpy()), protocol=5)

    @classmethod
    def unpacked(cls, data: bytes) -> Batch:
        """What `packed` gave in a process of ours."""
        stored: Batch = pickle.loads(data)
        return stored._mapped(torch.from_numpy)

    def _mapped(self, change: Callable[[Any], Any]) -> Batch:
        seen = {f.name: change(getattr(self.visibility, f.name)) for f in fields(Visibility)}
        parts = {
            field.name: change(getattr(self, field.name))
            for field in fields(self)
            if isinstance(getattr(self, field.name), Tensor | np.ndarray)
        }
        return replace(self, visibility=Visibility(**seen), **parts)


def collate(rows: Sequence[Row]) -> Batch:
    """Rows of one length as a batch on the CPU."""
    tokens = len(rows[0].ids)
    answers = len(rows[0].answer_tasks)
    units = len(rows[0].streams)
    trash = len(rows) * tokens
    offset = np.arange(len(rows))

    def stack(name: str, dtype: type[np.generic]) -> Tensor:
        return torch.from_numpy(np.stack([getattr(row, name) for row in rows]).astype(dtype))

    def placed(name: str) -> Tensor:
        places = stack(name, np.int64)
        shift = torch.from_numpy(offset * tokens).view(-1, *[1] * (places.dim() - 1))
        return torch.where(places < tokens, places + shift, trash).flatten(0, 1)

    label_answers = stack("label_answers", np.int64) + torch.from_numpy(offset * answers)[:, None]
    streams = stack("streams", np.int64) + torch.from_numpy(offset * (units + 1))[:, None]
    return Batch(
        ids=stack("ids", np.int64),
        positions=stack("positions", np.int32),
        visibility=Visibility(
            first=stack("first", np.int32),
            seen=stack("seen", np.int32),
            horizon=stack("horizon", np.int32),
            own=stack("own", np.int32),
            kept=stack("kept", np.bool_),
        ),
        label_places=placed("label_places").remainder(trash),  # any token where there is no label
        label_ids=stack("label_ids", np.int64).flatten(),
        label_weights=stack("label_weights", np.float32).flatten(),
        label_answers=label_answers.flatten(),
        answer_tasks=stack("answer_tasks", np.int64).flatten(),
        answer_distances=stack("answer_distances", np.int64).flatten(),
        picture_places=placed("picture_places"),
        sound_places=placed("sound_places"),
        streams=streams.flatten(),
        pictures=pictures.describe([picture for row in rows for picture in row.pictures]),
        sounds=sounds.describe([sound for row in rows for sound in row.sounds]),
        num_units=sum(row.num_units for row in rows),
    )
