"""The voices of the speech bank: which there are, how fast they speak, and who hears them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Voice:
    """One row of the speech bank.

    Attributes:
        name: What espeak-ng calls it: a language, with a variant after a plus sign.
        speed: Words a minute.
        split: The only split that hears it.
        sentences: It also says the needle's sentences.
    """

    name: str
    speed: int
    split: str
    sentences: bool = False


_TRAIN = (
    Voice("en", 150, "train", sentences=True),
    Voice("en-us", 165, "train", sentences=True),
    Voice("en-gb+f3", 155, "train", sentences=True),
    Voice("en-us+f4", 145, "train", sentences=True),
    Voice("en", 180, "train"),
    Voice("en-us", 135, "train"),
    Voice("en-gb-x-rp", 150, "train"),
    Voice("en-gb-x-rp+m3", 170, "train"),
    Voice("en-gb-x-rp+f2", 140, "train"),
    Voice("en-gb-scotland", 150, "train"),
    Voice("en-gb-scotland+f4", 165, "train"),
    Voice("en-gb-x-gbclan", 155, "train"),
    Voice("en-gb-x-gbclan+m4", 140, "train"),
    Voice("en-gb-x-gbcwmd", 160, "train"),
    Voice("en-gb-x-gbcwmd+f1", 145, "train"),
    Voice("en-029", 150, "train"),
    Voice("en-029+f2", 165, "train"),
    Voice("en+m1", 150, "train"),
    Voice("en+m2", 170, "train"),
    Voice("en+m3", 140, "train"),
    Voice("en-us+m1", 155, "train"),
    Voice("en-us+m4", 175, "train"),
    Voice("en-us+m6", 145, "train"),
    Voice("en-us+m7", 160, "train"),
    Voice("en+f1", 150, "train"),
    Voice("en+f2", 165, "train"),
    Voice("en+f4", 140, "train"),
    Voice("en-us+f1", 160, "train"),
    Voice("en-us+f2", 175, "train"),
    Voice("en-us+f3", 135, "train"),
    Voice("en-us+adam", 155, "train"),
    Voice("en-us+Alex", 165, "train"),
    Voice("en+Alicia", 150, "train"),
    Voice("en-us+Andrea", 160, "train"),
    Voice("en+antonio", 145, "train"),
    Voice("en-us+benjamin", 155, "train"),
    Voice("en+david", 165, "train"),
    Voice("en-us+edward", 150, "train"),
    Voice("en+john", 160, "train"),
    Voice("en-us+linda", 150, "train"),
    Voice("en-us+max", 145, "train"),
    Voice("en+paul", 155, "train"),
    Voice("en-us+steph", 160, "train"),
    Voice("en+victor", 150, "train"),
)

_TUNE = (
    Voice("en-us+m3", 150, "tune", sentences=True),
    Voice("en+f5", 160, "tune"),
    Voice("en-us+Andy", 145, "tune"),
    Voice("en+belinda", 155, "tune"),
    Voice("en-us+michel", 165, "tune"),
    Voice("en+rob", 150, "tune"),
)

_TEST = (
    Voice("en-us+f5", 150, "test", sentences=True),
    Voice("en+m4", 155, "test"),
    Voice("en-us+m5", 165, "test"),
    Voice("en+steph3", 145, "test"),
    Voice("en-us+marcelo", 150, "test"),
    Voice("en+zac", 160, "test"),
)

VOICES: tuple[Voice, ...] = _TRAIN + _TUNE + _TEST
"""All rows of the speech bank. Nothing that is said in "tune" or "test" was heard in training."""


def rows_of(split: str, *, sentences: bool = False) -> tuple[int, ...]:
    """Rows of the speech bank that a split may use, or those of them that say sentences."""
    return tuple(
        row
        for row, voice in enumerate(VOICES)
        if voice.split == split and (voice.sentences or not sentences)
    )
