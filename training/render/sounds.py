"""Makes the sound of units, many at a time, on the CPU or a GPU: equal up to rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omnitide.evaluation.needle.sound import BEEP_EVERY, BEEP_HERTZ, BEEP_SECONDS, NOISE
from omnitide.media.chunk import SAMPLE_RATE
from training.bank.bank import FIRST_SENTENCE, Bank, column
from training.bank.mulaw import decoded
from training.render.uniforms import between, uniforms
from training.world.script import Sound
from training.world.unit import SAMPLES

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


Described = dict[str, NDArray[Any]]
"""All that playing needs, in arrays whose first axis is the unit."""


def describe(sounds: Sequence[Sound]) -> Described:
    """Read sounds into arrays, with NumPy alone: the share of the work for other processes.

    Arrays of several calls can be joined along their first axis.
    """
    u = uniforms(np.array([sound.look for sound in sounds], np.int64), 12, _GENERAL)
    speech = np.array([sound.kind in SPOKEN for sound in sounds], bool)
    beeps = np.array([sound.kind == "beeps" for sound in sounds], bool)
    spoken = [(s.kind or "", s.text) if s.kind in SPOKEN else None for s in sounds]
    # Whatever is said is well above noise and tones.
    loudness = 0.25 * 4.0 ** u[:, 0]
    level = np.where(u[:, 1] < NEEDLE_SHARE, NOISE, 0.0005 * 60.0 ** u[:, 2])
    level = np.where(speech, np.minimum(level, 0.03 * loudness), level)
    count = np.array([int(s.text) if s.kind == "beeps" else 0 for s in sounds], np.int64)
    needle = beeps & (u[:, 6] < NEEDLE_SHARE)
    every = np.where(needle, BEEP_EVERY, between(u[:, 7], 0.24, 0.31)) * SAMPLE_RATE
    long = np.where(needle, BEEP_SECONDS, between(u[:, 8], 0.09, 0.15)) * SAMPLE_RATE
    every, long = np.round(every).astype(np.int64), np.round(long).astype(np.int64)
    tone = between(u[:, 11], 0.01, 0.08) * loudness
    return {
        "noise_at": (u[:, 3] * (TABLE - SAMPLES)).astype(np.int64),
        "level": level.astype(np.float32),
        "speech": speech,
        "voice": np.array([sound.voice for sound in sounds], np.int64),
        "column": np.array([column(*said) if said else 0 for said in spoken], np.int64),
        "place": u[:, 5],
        "loudness": loudness.astype(np.float32),
        "beeps": count,
        "every": every,
        "long": long,
        "hertz": np.where(needle, BEEP_HERTZ, between(u[:, 9], 450, 1600)).astype(np.int64),
        "peak": np.where(needle, PEAK, between(u[:, 0], 0.1, 0.6)).astype(np.float32),
        "first": np.where(needle, 0, u[:, 5] * (SAMPLES - count * every)).astype(np.int64),
        "tone": np.where((u[:, 4] < TONE_SHARE) & ~beeps, tone, 0).astype(np.float32),
        "tone_hertz": (60 * 40.0 ** u[:, 10]).astype(np.int64),
    }


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
    def play(self, sounds: Sequence[Sound] | Described) -> Tensor:
        """The samples of some units.

        Args:
            sounds: Of the units, or what `describe` made of them.

        Returns:
            float32 in [-1, 1], shape (n, SAMPLES), on the device.

        Raises:
            ValueError: A voice doesn't say what it should.
        """
        described = sounds if isinstance(sounds, dict) else describe(sounds)
        count = len(described["level"])
        out = torch.empty((count, SAMPLES), device=self._device)
        for start in range(0, count, BATCH):
            stop = min(start + BATCH, count)
            batch = {name: array[start:stop] for name, array in described.items()}
            out[start:stop] = self._play(batch)
        return out

    def _play(self, described: Described) -> Tensor:
        first = self._column(described["noise_at"])
        out = self._noise[first + self._time] * self._column(described["level"])
        parts = (
            (described["tone"] > 0, self._tones),
            (described["speech"], self._speech),
            (described["beeps"] > 0, self._beeps),
        )
        for there, make in parts:
            which = np.flatnonzero(there)
            if len(which):
                some = {name: array[which] for name, array in described.items()}
                out[torch.from_numpy(which).to(self._device)] += make(some)
        return out.clamp_(-1, 1)

    def _column(self, array: NDArray[Any]) -> Tensor:
        """An array on the device, shape (n, 1)."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)[:, None]

    def _speech(self, some: Described) -> Tensor:
        """Words somewhere in their unit; halves of sentences from its beginning."""
        voices, columns = some["voice"], some["column"]
        starts, lengths = self._starts[voices, columns], self._lengths[voices, columns]
        if not lengths.all():
            silent = int(np.flatnonzero(lengths == 0)[0])
            raise ValueError(
                f"[play] voice {voices[silent]} must say column {columns[silent]} of the bank, "
                "which it doesn't; take a voice with sentences"
            )
        words = columns < FIRST_SENTENCE
        first = np.where(words, some["place"] * (SAMPLES - lengths + 1), 0).astype(np.int64)
        place = self._time - self._column(first)
        inside = (place >= 0) & (place < self._column(lengths))
        codes = self._codes[self._column(starts) + torch.where(inside, place, 0)]
        return self._decoded[codes.long()] * inside * self._column(some["loudness"])

    def _beeps(self, some: Described) -> Tensor:
        """Beeps: the needle's from the beginning of the unit, others of any pitch and pace."""
        every, long = self._column(some["every"]), self._column(some["long"])
        place = self._time - self._column(some["first"])
        part = place % every
        inside = (place >= 0) & (place < self._column(some["beeps"]) * every)
        to_end = torch.minimum(part, long - part).float()
        fade = (to_end * (FADE / SAMPLE_RATE)).clamp(0, 1) * inside
        return _sine(part, self._column(some["hertz"])) * fade * self._column(some["peak"])

    def _tones(self, some: Described) -> Tensor:
        """A faint steady tone through the whole unit."""
        return _sine(self._time, self._column(some["tone_hertz"])) * self._column(some["tone"])


def _sine(place: Tensor, hertz: Tensor) -> Tensor:
    """A sine of whole hertz at samples; whole numbers keep it exact far from the start."""
    turns = (place * hertz) % SAMPLE_RATE
    return torch.sin(turns.float() * (2 * torch.pi / SAMPLE_RATE))
