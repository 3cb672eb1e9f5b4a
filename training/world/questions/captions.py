"""One or two short sentences about a unit."""

from __future__ import annotations

from omnitide.evaluation.needle.fact import BEEPS
from training.world.script import Picture, Sound


def caption(picture: Picture, sound: Sound) -> str:
    """What is shown and what is said, a sentence each."""
    return f"{_shown(picture)} {_said(sound)}"


def _shown(picture: Picture) -> str:
    if picture.kind is None:
        return "Nothing is shown."
    if picture.kind == "word":
        return f"The word {picture.text} is shown."
    if picture.kind == "digits":
        return f"The number {picture.text} is shown."
    if picture.motion is not None:
        return f"A {picture.text} moves {picture.motion}."
    if picture.count == 1:
        return f"A {picture.text} is shown."
    plural = f"{picture.text}es" if picture.text.endswith("s") else f"{picture.text}s"
    return f"{BEEPS[picture.count - 1].capitalize()} {plural} are shown."


def _said(sound: Sound) -> str:
    if sound.kind is None:
        return "Nothing is said."
    if sound.kind == "beeps":
        times = {"1": "once", "2": "twice"}.get(sound.text, f"{sound.text} times")
        return f"A tone beeps {times}."
    return f"Somebody says {sound.text}."
