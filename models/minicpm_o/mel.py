"""Sound to the log-mel frames of the audio tower: clips, and streams second by second.

`clip_mels` serves sound that is there as a whole. Of a live stream, `MelStream` gives frames with
neighbours for the convolutions, as release 4.5 takes them; `PlainMelStream` transforms each second
for itself, as 2.6 did. Both are values: `push` returns the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from omnitide.media.chunk import SAMPLE_RATE
from omnitide.models.mel import (
    FLOOR,
    HALF,
    HOP,
    RANGE,
    Mel,
    Samples,
    checked,
    log_mel,
    log_power,
    mirrored,
    normalised,
)

NUM_BANDS = 80
"""Mel bands of a frame."""

CLIP = 30 * SAMPLE_RATE
"""Samples of the longest clip; longer sound is cut into such clips."""

LEAD = 560
"""Zeros in front of a stream, so that the first second has frames with true samples behind it."""

FIXED_FLOOR_BELOW = 5 * SAMPLE_RATE
"""Samples below which the quietest value told apart is fixed, not found from the loudest one."""

FULL, DROPPED = 30 * SAMPLE_RATE, 10 * SAMPLE_RATE
"""Samples at which a stream forgets its oldest ones, and how many."""

MOST_LAST = 100
"""Most frames that the end of a stream gives."""

_EDGE = HALF // HOP + 1  # frames at the left edge that see mirrored samples


def clip_mels(samples: Samples) -> list[Mel]:
    """Log-mel frames of sound that is there as a whole, one array for each 30 s of it.

    Each clip is filled with zeros up to 30 s before the transform; its `ceil(samples / 160)` frames
    are kept, none less than 8 below the clip's maximum.

    Args:
        samples: Mono, `SAMPLE_RATE`, float in [-1, 1], (num_samples,).

    Returns:
        float32, (num_frames, `NUM_BANDS`) each; none for no samples.

    Raises:
        MediaError: Samples are not one row of finite floats.
    """
    sound = checked(samples)
    return [_clip_mel(sound[at : at + CLIP]) for at in range(0, len(sound), CLIP)]


def _clip_mel(samples: NDArray[np.float64]) -> Mel:
    missing = CLIP - len(samples)
    if missing > HALF:
        return log_mel(samples, NUM_BANDS)
    # The end of the 30 s is mirrored, and the last frames see it.
    filled = np.concatenate([samples, np.zeros(missing)])
    return log_mel(filled, NUM_BANDS, right_edge="reflect")[: -(-len(samples) // HOP)]


@dataclass(frozen=True, slots=True, eq=False)
class MelPiece:
    """Mel frames that go through the convolutions together.

    Attributes:
        frames: float32, (num_frames, `NUM_BANDS`).
        before, after: How many of the first and the last ones are there for the convolutions
            alone; they belong to the pieces before and after. Even.
    """

    frames: Mel
    before: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class MelStream:
    """Log-mel frames of a live stream, with true samples to both sides of each.

    The transform is that of all samples that are remembered, which is the published rule:

    - `LEAD` zeros come first. So a first second gives 100 frames and 2 neighbours behind, every
      further one 2 neighbours, 100 frames, 2 neighbours.
    - While less than 5 s are remembered, values down to the fixed floor are kept; from then on
      none less than 8 below the loudest of what is remembered, frames at the end included whose
      right side is mirrored because it isn't known yet. Neighbours are normalised anew each time.
    - Once 30 s are remembered, the oldest 10 s are forgotten.

    A push need not be a second: what is there is given out in steps of `step` frames, as soon as
    the neighbours behind are known, and the rest waits.

    Attributes:
        step: Mel frames of one token.
        neighbours: Frames given beside a piece on either side. 0: none, and the convolutions see
            zeros at every edge (half-duplex).
        buffer: Samples that are remembered, float32, read-only.
        start: Frames before the buffer.
        waiting: Samples that are not in the buffer yet, float32, read-only.
        given: Frames given out so far, neighbours not counted.
        peaks: Greatest raw value of each frame of the buffer that has its true samples behind it.
    """

    step: int
    neighbours: int = 2
    buffer: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    start: int = 0
    waiting: NDArray[np.float32] = field(default_factory=lambda: np.zeros(LEAD, np.float32))
    given: int = 0
    peaks: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def push(self, samples: Samples, last: bool = False) -> tuple[list[MelPiece], MelStream]:
        """Frames of the next samples, and the stream after them. Changes nothing.

        Args:
            samples: As in `clip_mels`; any number, also none.
            last: Nothing follows: what waits is given out as well, at most 100 frames, mirrored at
                the end.

        Returns:
            One piece for each second, or less; and the next stream.

        Raises:
            MediaError: Samples are not one row of finite floats.
        """
        sound = checked(samples).astype(np.float32)
        pieces, stream = [], self
        seconds = [sound[at : at + SAMPLE_RATE] for at in range(0, len(sound), SAMPLE_RATE)]
        for second in seconds[:-1]:
            piece, stream = stream._push(second, False)
            pieces.append(piece)
        if seconds or last:
            piece, stream = stream._push(seconds[-1] if seconds else sound, last)
            pieces.append(piece)
        return [piece for piece in pieces if piece is not None], stream

    def _push(self, samples: NDArray[np.float32], last: bool) -> tuple[MelPiece | None, MelStream]:
        """At most a second."""
        waiting = np.concatenate([self.waiting, samples])
        end = self.start * HOP + len(self.buffer) + len(waiting)
        known = (end - HALF) // HOP + 1  # frames with true samples behind them
        count = (known - self.neighbours - self.given) // self.step * self.step
        if last:
            count = min(end // HOP - self.given, MOST_LAST)
        if count < 1:
            return None, replace(self, waiting=_held(waiting))
        # With neighbours, exactly one frame more than is given out enters: it is mirrored at the
        # end and counts for the maximum alone. Without, all that is there enters.
        taken = len(waiting)
        if self.neighbours and not last:
            taken -= end - (self.given + count + self.neighbours + 1) * HOP
        stream = self._entered(waiting[:taken], waiting[taken:])
        first = stream.given - stream.start
        ready = max(0, first - self.neighbours)
        raw, peaks = stream._transform(ready)
        floor = FLOOR
        if len(stream.buffer) >= FIXED_FLOOR_BELOW:
            floor = max(float(raw.max()), float(peaks.max(initial=FLOOR))) - RANGE
        after = 0 if last else self.neighbours
        frames = normalised(raw[: first - ready + count + after], floor)
        piece = MelPiece(frames, first - ready, after)
        return piece, replace(stream, given=self.given + count, peaks=peaks)

    def _entered(self, samples: NDArray[np.float32], waiting: NDArray[np.float32]) -> MelStream:
        """The stream with these samples in its buffer, the oldest ones forgotten if it is full."""
        buffer, start, peaks = np.concatenate([self.buffer, samples]), self.start, self.peaks
        if len(buffer) >= FULL:
            buffer = buffer[DROPPED:]
            start += DROPPED // HOP
            # The first frames are mirrored at the new edge.
            edge = _log_power_from(buffer, 0, _EDGE).max(axis=1)
            peaks = np.concatenate([edge, peaks[DROPPED // HOP + _EDGE :]])
        return replace(self, buffer=_held(buffer), start=start, waiting=_held(waiting), peaks=peaks)

    def _transform(self, first: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Raw values of the buffer's frames from `first` on, and the peaks of the settled ones."""
        begin = min(first, len(self.peaks))
        raw = _log_power_from(self.buffer, begin, len(self.buffer) // HOP - begin)
        settled = max((len(self.buffer) - HALF) // HOP + 1, 0)
        peaks = np.concatenate([self.peaks[:begin], raw[: settled - begin].max(axis=1)])
        peaks.flags.writeable = False
        return raw[first - begin :], peaks


@dataclass(frozen=True, slots=True)
class PlainMelStream:
    """Log-mel frames of a live stream, each second for itself as a clip of its own.

    Nothing is remembered and nothing waits.
    """

    def push(self, samples: Samples, last: bool = False) -> tuple[list[MelPiece], PlainMelStream]:
        """Frames of the next samples, and the stream after them, which is this one.

        Args:
            samples: As in `clip_mels`; any number, also none.
            last: Of no meaning here.

        Returns:
            One piece for each second, or what is left of it; and the stream.

        Raises:
            MediaError: Samples are not one row of finite floats.
        """
        sound = checked(samples)
        seconds = (sound[at : at + SAMPLE_RATE] for at in range(0, len(sound), SAMPLE_RATE))
        return [MelPiece(log_mel(second, NUM_BANDS)) for second in seconds], self


def _log_power_from(buffer: NDArray[np.float32], first: int, count: int) -> NDArray[np.float64]:
    """Raw values of `count` frames of a buffer from frame `first` on; its edges are mirrored."""
    begin = first * HOP - HALF
    stop = (first + count) * HOP + HALF
    stretch = buffer[max(begin, 0) : stop].astype(np.float64)
    return log_power(mirrored(stretch, min(begin, 0)), count, NUM_BANDS)


def _held(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Read-only samples without a larger array behind them."""
    held = samples.copy() if samples.base is not None else samples
    held.flags.writeable = False
    return held
