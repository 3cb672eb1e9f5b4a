"""Makes the sound of units, many at a time, on the CPU or a GPU: equal up to rounding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from omnitide.evaluation.needle.sound import BEEP_EVERY, BEEP_HERTZ, BEEP_SECONDS, NOISE
from omnitide.media.chunk import SAMPLE_RATE
from training.bank import Bank, column
from training.chance import between, uniforms
from training.mulaw import decoded
from training.script import Sound
from training.size import SAMPLES

BATCH = 256
"""Units that are made at a time: it bounds the memory."""

NEEDLE_SHARE = 0.4
"""Share of beeps, and of noise levels, that are the needle's."""

TONE_SHARE = 0.2
"""Share of units without beeps that have a tone all along, which means nothing."""

TABLE = 1 << 20
"""Entries of the table of noise."""

FADE = 100
"""Beeps come and go within a hundredth of a second."""

PEAK = 0.4
"""Amplitude of the needle's beeps."""

_GENERAL = 40

SPOKEN = ("speech", "sentence", "repeat")


class Player:
    """Makes sounds.

    Args:
        bank: Speech.
        device: Where sounds are made and stay.
    """

    def __init__(self, bank: Bank, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._starts, self._lengths = bank.starts, bank.lengths
        self._codes = torch.from_numpy(bank.codes).to(self._device)
        self._decoded = torch.from_numpy(decoded()).to(self._device)
        noise = np.random.default_rng(1).standard_normal(TABLE).astype(np.float32)
        self._noise = torch.from_numpy(noise).to(self._device)
        self._time = torch.arange(SAMPLES, device=self._device)

    @torch.no_grad()
    def play(self, sounds: Sequence[Sound]) -> Tensor:
        """The samples of some units.

        Returns:
            float32 in [-1, 1], shape (n, SAMPLES), on the device.

        Raises:
            ValueError: A voice doesn't say what it should.
        """
        out = torch.empty((len(sounds), SAMPLES), device=self._device)
        for start in range(0, len(sounds), BATCH):
            batch = sounds[start : start + BATCH]
            out[start : start + len(batch)] = self._play(batch)
        return out

    def _play(self, sounds: Sequence[Sound]) -> Tensor:
        seeds = np.array([sound.look for sound in sounds], np.int64)
        u = uniforms(seeds, 12, _GENERAL)
        speech = np.array([i for i, sound in enumerate(sounds) if sound.kind in SPOKEN], np.int64)
        beeps = np.array([i for i, sound in enumerate(sounds) if sound.kind == "beeps"], np.int64)
        # Whatever is said is well above noise and tones.
        loudness = 0.25 * 4.0 ** u[:, 0]
        level = np.where(u[:, 1] < NEEDLE_SHARE, NOISE, 0.0005 * 60.0 ** u[:, 2])
        level[speech] = np.minimum(level[speech], 0.03 * loudness[speech])
        first = (u[:, 3] * (TABLE - SAMPLES)).astype(np.int64)
        out = self._noise[self._put(first)[:, None] + self._time] * self._put(level)[:, None]
        toned = u[:, 4] < TONE_SHARE
        toned[beeps] = False
        self._add_tones(out, np.flatnonzero(toned), u, loudness)
        if len(speech):
            self._add_speech(out, speech, [sounds[i] for i in speech], u, loudness)
        if len(beeps):
            self._add_beeps(out, beeps, np.array([int(sounds[i].text) for i in beeps]), u)
        return out.clamp_(-1, 1)

    def _put(self, array: np.ndarray) -> Tensor:
        """An array on the device, real numbers as float32."""
        single = array.astype(np.float32) if array.dtype == np.float64 else array
        return torch.from_numpy(np.ascontiguousarray(single)).to(self._device)

    def _add_speech(
        self,
        out: Tensor,
        which: np.ndarray,
        sounds: Sequence[Sound],
        u: np.ndarray,
        loudness: np.ndarray,
    ) -> None:
        """Words somewhere in their unit; halves of sentences from its beginning."""
        columns = np.array([column(sound.kind or "", sound.text) for sound in sounds])
        voices = np.array([sound.voice for sound in sounds])
        starts, lengths = self._starts[voices, columns], self._lengths[voices, columns]
        if not lengths.all():
            silent = sounds[int(np.flatnonzero(lengths == 0)[0])]
            raise ValueError(f"[play] voice {silent.voice} has no {silent.kind} {silent.text!r}")
        words = columns < column("sentence", "anchor")
        offsets = np.where(words, u[which, 5] * (SAMPLES - lengths + 1), 0).astype(np.int64)
        place = self._time - self._put(offsets)[:, None]
        inside = (place >= 0) & (place < self._put(lengths)[:, None])
        codes = self._codes[self._put(starts)[:, None] + torch.where(inside, place, 0)]
        said = self._decoded[codes.long()] * inside * self._put(loudness[which])[:, None]
        out[self._put(which)] += said

    def _add_beeps(self, out: Tensor, which: np.ndarray, counts: np.ndarray, u: np.ndarray) -> None:
        """Beeps: the needle's from the beginning of the unit, others of any pitch and pace."""
        needle = u[which, 6] < NEEDLE_SHARE
        every = np.where(needle, BEEP_EVERY, between(u[which, 7], 0.24, 0.31)) * SAMPLE_RATE
        long = np.where(needle, BEEP_SECONDS, between(u[which, 8], 0.09, 0.15)) * SAMPLE_RATE
        hertz = np.where(needle, BEEP_HERTZ, between(u[which, 9], 450, 1600))
        peak = np.where(needle, PEAK, between(u[which, 0], 0.1, 0.6))
        every, long, hertz = (np.round(x).astype(np.int64) for x in (every, long, hertz))
        room = SAMPLES - counts * every
        offsets = np.where(needle, 0, u[which, 5] * room).astype(np.int64)
        place = self._time - self._put(offsets)[:, None]
        part = place % self._put(every)[:, None]
        inside = (place >= 0) & (place < self._put(counts * every)[:, None])
        to_end = torch.minimum(part, self._put(long)[:, None] - part).float()
        fade = (to_end * (FADE / SAMPLE_RATE)).clamp(0, 1) * inside
        out[self._put(which)] += (
            _sine(part, self._put(hertz)[:, None]) * fade * self._put(peak).unsqueeze(1)
        )

    def _add_tones(
        self, out: Tensor, which: np.ndarray, u: np.ndarray, loudness: np.ndarray
    ) -> None:
        """A faint steady tone through the whole unit."""
        if not len(which):
            return
        hertz = self._put((60 * 40.0 ** u[which, 10]).astype(np.int64))[:, None]
        strength = between(u[which, 11], 0.01, 0.08) * loudness[which]
        out[self._put(which)] += _sine(self._time, hertz) * self._put(strength)[:, None]


def _sine(place: Tensor, hertz: Tensor) -> Tensor:
    """A sine of whole hertz at samples; whole numbers keep it exact far from the start."""
    turns = (place * hertz) % SAMPLE_RATE
    return torch.sin(turns.float() * (2 * torch.pi / SAMPLE_RATE))
