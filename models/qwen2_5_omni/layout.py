"""Where picture and sound lie among the tokens, and at which positions (TMRoPE).

Time runs at 25 positions a second: one for each audio token, `25 * seconds` for the picture pair
that was shown then. Rows and columns of a picture count from the same base.

Two layouts are written by the same code. The *live* one closes a vision span for each chunk and
lets it take as many positions as its picture or its sound does, whichever is more, so that any
span can be evicted as if it had never been there. The *offline* one is transformers': a film is a
single span, and what follows starts after the last piece that was laid out, even where an earlier
piece reached further.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnitide.models.qwen2_5_omni.config import MediaTokens, ThinkerConfig
from omnitide.models.qwen2_5_omni.image import Grid
from omnitide.units import Modality, UnitBuilder

Offsets = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Layout:
    """The family's position rules; each method adds one piece of media to a builder.

    Grids are (steps, patch rows, patch columns); numbers of sound are audio tokens.
    """

    tokens: MediaTokens
    merge_size: int
    positions_per_second: int
    seconds_per_chunk: int

    @classmethod
    def of(cls, config: ThinkerConfig) -> Layout:
        """The rules of a checkpoint."""
        return cls(
            config.tokens,
            config.vision.merge_size,
            config.positions_per_second,
            config.seconds_per_chunk,
        )

    def picture_tokens(self, grid: Grid) -> int:
        """Tokens of a picture or film without its markers."""
        steps, rows, columns = grid
        return steps * (rows // self.merge_size) * (columns // self.merge_size)

    def still(self, builder: UnitBuilder, grid: Grid) -> UnitBuilder:
        """A picture that stands outside of time."""
        ids = self.tokens
        builder.markers([ids.vision_bos])
        builder.content(ids.image, self._picture(grid, 0.0), Modality.IMAGE).end_step()
        return builder.markers([ids.vision_eos])

    def film(self, builder: UnitBuilder, grid: Grid, seconds_per_step: float) -> UnitBuilder:
        """Pictures in time without sound."""
        ids = self.tokens
        builder.markers([ids.vision_bos])
        offsets = self._picture(grid, seconds_per_step)
        builder.content(ids.video, offsets, Modality.IMAGE).end_step()
        return builder.markers([ids.vision_eos])

    def sound(self, builder: UnitBuilder, num_tokens: int) -> UnitBuilder:
        """Sound on its own."""
        ids = self.tokens
        builder.markers([ids.audio_bos])
        builder.content(ids.audio, _sound(num_tokens), Modality.AUDIO).end_step()
        return builder.markers([ids.audio_eos])

    def film_with_sound(
        self,
        builder: UnitBuilder,
        grid: Grid,
        seconds_per_step: float,
        num_tokens: int,
        live: bool = True,
    ) -> UnitBuilder:
        """Pictures and sound that start together, picture before sound every two seconds.

        Args:
            builder: Changed and returned.
            grid: Of the pictures.
            seconds_per_step: Seconds from one pair of frames to the next.
            num_tokens: Audio tokens, at least one.
            live: The live layout; otherwise the offline one.
        """
        ids = self.tokens
        picture, sound = self._picture(grid, seconds_per_step), _sound(num_tokens)
        pieces: list[tuple[int, Offsets, Modality]] = []
        pictures, sounds = self._cut(picture), self._cut(sound)
        for turn in range(max(len(pictures), len(sounds))):
            pieces += [(ids.video, part, Modality.IMAGE) for part in pictures[turn : turn + 1]]
            pieces += [(ids.audio, part, Modality.AUDIO) for part in sounds[turn : turn + 1]]
        builder.markers([ids.vision_bos, ids.audio_bos])
        for number, (token, offsets, modality) in enumerate(pieces, start=1):
            advances = live or number == len(pieces)
            builder.content(token, offsets, modality, advances=advances)
        return builder.end_step().markers([ids.audio_eos, ids.vision_eos])

    def _picture(self, grid: Grid, seconds_per_step: float) -> Offsets:
        """Offsets (time, row, column) of a film's tokens, shape (num_tokens, 3)."""
        steps, rows, columns = grid[0], grid[1] // self.merge_size, grid[2] // self.merge_size
        # transformers multiplies in float32 and cuts; 1.1 s a step shows the difference.
        seconds = np.arange(steps, dtype=np.float32) * np.float32(seconds_per_step)
        times = (seconds * np.float32(self.positions_per_second)).astype(np.int32)
        axes = np.meshgrid(times, np.arange(rows), np.arange(columns), indexing="ij")
        return np.stack(axes, axis=-1).reshape(-1, 3).astype(np.int32)

    def _cut(self, offsets: Offsets) -> Sequence[Offsets]:
        """Pieces of one chunk each, by time.

        Mirrors transformers: a bound is passed once a token, so that a gap longer than a chunk is
        followed by pieces of one token. It takes less than one frame pair a chunk to get there.
        """
        chunk = self.positions_per_second * self.seconds_per_chunk
        starts = [0]
        for index, time in enumerate(offsets[:, 0].tolist()):
            if time >= len(starts) * chunk:
                starts.append(index)
        stops = [*starts[1:], len(offsets)]
        return [offsets[a:b] for a, b in zip(starts, stops, strict=True)]


def _sound(num_tokens: int) -> Offsets:
    """Offsets of audio tokens: one position each on every axis, shape (num_tokens, 3)."""
    return np.repeat(np.arange(num_tokens, dtype=np.int32)[:, None], 3, axis=1)
