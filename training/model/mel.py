"""Log-mel of many streams at once, by the rule of omnitide's MelStream.

Sound comes in units of 2 s. The last frame of a unit mirrors its right edge, every frame sees the
true samples before it, and the greatest value so far in the stream sets the floor.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from omnitide.models.mel import FLOOR, HALF, HOP, RANGE, WINDOW, mel_filters
from training.settings import BANDS
from training.world.unit import SAMPLES

_LEFT = HALF + HOP
"""Samples before a unit that are needed: one frame is computed again, for the maximum alone."""


class LogMel(nn.Module):
    """Samples to what the audio tower takes."""

    def __init__(self) -> None:
        super().__init__()
        filters = torch.tensor(mel_filters(BANDS), dtype=torch.float32)
        self.register_buffer("filters", filters, persistent=False)
        window = torch.hann_window(WINDOW, periodic=True, dtype=torch.float32)
        self.register_buffer("window", window, persistent=False)

    @torch.no_grad()
    def forward(self, samples: Tensor, streams: Tensor) -> Tensor:
        """Log-mel frames.

        Args:
            samples: float32, (units, 32000).
            streams: int, (units,), the stream of each; units of one are neighbours, oldest first.

        Returns:
            float32, (units, 200, 128).
        """
        units = len(samples)
        continues = torch.zeros(units, dtype=torch.bool, device=samples.device)
        continues[1:] = streams[1:] == streams[:-1]
        before = samples.roll(1, 0)[:, -_LEFT:]
        # A stream's left edge is mirrored; the frame before it is not used.
        opening = torch.nn.functional.pad(samples[:, 1 : HALF + 1].flip(1), (HOP, 0))
        left = torch.where(continues[:, None], before, opening)
        right = torch.nn.functional.pad(samples[:, SAMPLES - HALF : SAMPLES - 1].flip(1), (0, 1))
        padded = torch.cat([left, samples, right], dim=1)
        frames = padded.unfold(1, WINDOW, HOP)[:, : SAMPLES // HOP + 1] * self.window
        spectrum = torch.fft.rfft(frames)
        power = spectrum.real.square() + spectrum.imag.square()
        raw = (power @ self.filters).clamp_min(10.0**FLOOR).log10()
        again, fresh = raw[:, 0].amax(1), raw[:, 1:]
        settled = fresh[:, :-1].amax((1, 2))
        settled = torch.where(continues, torch.maximum(settled, again), settled)
        place = torch.arange(units, device=samples.device)
        earlier = (streams[:, None] == streams) & (place <= place[:, None])
        peak = torch.where(earlier, settled, FLOOR).amax(1)
        loudest = torch.maximum(peak, fresh.amax((1, 2)))
        floor = (loudest - RANGE)[:, None, None]
        return (torch.maximum(fresh, floor) + 4) / 4
