"""What a made stream holds: pictures, sounds, typed text and questions with their answers.

A script is plain data. The painter and the player make pixels and samples from it; the questions'
answers follow from it alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Picture:
    """What one unit shows.

    Attributes:
        ground: Index into the bank of grounds; negative: the needle's grey waves.
        kind: "shape", "word", "digits", or None for the ground alone.
        text: "red circle", "anchor", "48213", or "" where ``kind`` is None.
        motion: "left", "right", "up" or "down" for a shape that moves; None: it rests.
        count: How many copies of a shape are shown, 1 to 5.
        look: Seed of place, size, font, brightness and jitter.
    """

    ground: int
    kind: str | None
    text: str
    motion: str | None
    count: int
    look: int


@dataclass(frozen=True, slots=True)
class Sound:
    """What one unit sounds like.

    Attributes:
        kind: "speech", "beeps", or None for noise alone; "sentence" and "repeat" are the two
            halves of the needle's sentence, which takes two units.
        text: The word that is said, the number of beeps as a digit, or "".
        voice: Row of the speech bank (a voice with its speed).
        look: Seed of the offset in the unit, loudness and noise.
    """

    kind: str | None
    text: str
    voice: int
    look: int


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its answer.

    Attributes:
        after: The question is asked after this unit (0-based) is over.
        task: Name of the task.
        prompt: The question's words.
        answer: The one right answer.
        distance: Units between the oldest fact that the answer needs and the question; 0 is the
            newest unit and -1 means that the answer hangs on no single fact.
        inline: The question and its answer stand in the stream.
    """

    after: int
    task: str
    prompt: str
    answer: str
    distance: int
    inline: bool


@dataclass(frozen=True, slots=True)
class Typed:
    """Text of the user's in the stream, after unit ``after``."""

    after: int
    text: str


@dataclass(frozen=True, slots=True)
class Script:
    """One stream: a picture and a sound a unit; text and questions ascending in ``after``."""

    pictures: tuple[Picture, ...]
    sounds: tuple[Sound, ...]
    typed: tuple[Typed, ...]
    questions: tuple[Question, ...]
