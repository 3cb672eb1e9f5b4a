"""Where picture and sound lie among the tokens. Every token takes one position.

    picture   <image> 64 </image> [<slice> 64 </slice> ...]
    sound     <|audio_start|> 10 a second <|audio_end|>
    unit      <unit> pictures, sound without markers, decision </unit>

A picture of a prompt has its number before it and line breaks between rows of slices and behind
it; one of a stream has neither. The rules are the published ones for both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omnitide.models.minicpm_o.markers import Markers
from omnitide.units import AXES, Modality, Role, UnitBuilder

Slices = tuple[int, int]
"""Columns and rows of a picture's slices; (0, 0) if it has none."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Each method adds one piece of media to a builder, and returns it.

    Attributes:
        markers: Of the tokenizer.
        num_queries: Tokens of a picture or slice.
    """

    markers: Markers
    num_queries: int

    def picture(self, builder: UnitBuilder, slices: Slices) -> UnitBuilder:
        """A picture of a stream: the source image, then its slices, row by row."""
        return self._picture(builder, slices, between_rows=())

    def still(self, builder: UnitBuilder, slices: Slices, number: tuple[int, ...]) -> UnitBuilder:
        """A picture of a prompt.

        Args:
            builder: Changed and returned.
            slices: Of the picture.
            number: Ids of the digits of its number, counted from 0.
        """
        ids = self.markers
        builder.text([ids.image_id, *number, ids.image_id_end], Role.BOUNDARY)
        self._picture(builder, slices, ids.newline)
        return builder.text(ids.newline, Role.BOUNDARY)

    def sound(self, builder: UnitBuilder, num_tokens: int) -> UnitBuilder:
        """Sound between its markers."""
        builder.text([self.markers.audio], Role.BOUNDARY)
        return self.bare_sound(builder, num_tokens).text([self.markers.audio_end], Role.BOUNDARY)

    def bare_sound(self, builder: UnitBuilder, num_tokens: int) -> UnitBuilder:
        """Sound without markers, as in a duplex unit and in its prefix."""
        return self._features(builder, num_tokens, Modality.AUDIO, Role.CONTENT)

    def picture_tokens(self, slices: Slices) -> int:
        """Tokens of a picture of a stream, markers included."""
        return (self.num_queries + 2) * (1 + slices[0] * slices[1])

    def still_tokens(self, slices: Slices, digits: int) -> int:
        """Tokens of a picture of a prompt whose number has so many digits."""
        breaks = max(slices[1], 1) * len(self.markers.newline)
        return digits + 2 + self.picture_tokens(slices) + breaks

    def _picture(
        self, builder: UnitBuilder, slices: Slices, between_rows: tuple[int, ...]
    ) -> UnitBuilder:
        ids, (columns, rows) = self.markers, slices
        role = Role.SOURCE_IMAGE if columns * rows else Role.CONTENT
        builder.text([ids.image], Role.BOUNDARY)
        self._features(builder, self.num_queries, Modality.IMAGE, role)
        builder.text([ids.image_end], Role.BOUNDARY)
        for row in range(rows):
            if row:
                builder.text(between_rows, Role.BOUNDARY)
            for _ in range(columns):
                builder.text([ids.slice], Role.BOUNDARY)
                self._features(builder, self.num_queries, Modality.IMAGE, Role.SLICE)
                builder.text([ids.slice_end], Role.BOUNDARY)
        return builder

    def _features(
        self, builder: UnitBuilder, count: int, modality: Modality, role: Role
    ) -> UnitBuilder:
        offsets = np.repeat(np.arange(count, dtype=np.int32)[:, None], AXES, axis=1)
        return builder.content(self.markers.feature, offsets, modality, role).end_step()
