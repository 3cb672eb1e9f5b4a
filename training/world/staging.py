"""Turns the facts of a stream into pictures and sounds: grounds, looks, voices, copies, motion."""

from __future__ import annotations

from random import Random

from training.world.grounds import (
    CROPS,
    FIRST_PLAIN,
    NUM_GROUNDS,
    WAVE_PHASES,
    photographs_of,
    wave_ground,
)
from training.world.script import Picture, Sound
from training.world.timeline import Timeline
from training.world.vocabulary import MOST_COPIES, MOTIONS
from training.world.voices import rows_of

LOOKS = 2**31

UNIT_PHASES = WAVE_PHASES * 2 // 30
"""Phases that the needle's waves go on in a unit of two seconds."""


def draw_pictures(random: Random, timeline: Timeline, split: str) -> tuple[Picture, ...]:
    """A picture for each unit; a fact of two units looks the same in both."""
    grounds = _draw_grounds(random, timeline.num_units, split)
    moving, copying = random.uniform(0, 0.5), random.uniform(0, 0.5)
    pictures: list[Picture] = []
    for unit, fact in enumerate(timeline.seen):
        look = random.randrange(LOOKS)
        if fact is None:
            pictures.append(Picture(grounds[unit], None, "", None, 1, look))
            continue
        if fact.first < unit:
            before = pictures[-1]
            pictures.append(
                Picture(grounds[unit], before.kind, before.text, None, before.count, before.look)
            )
            continue
        motion, count = None, 1
        if fact.kind == "shape":
            if fact.first == fact.last and random.random() < moving:
                motion = random.choice(MOTIONS)
            elif random.random() < copying:
                count = random.randint(2, MOST_COPIES)
        kind = "word" if fact.kind == "text" else fact.kind
        pictures.append(Picture(grounds[unit], kind, fact.text, motion, count, look))
    return tuple(pictures)


def draw_sounds(random: Random, timeline: Timeline, split: str) -> tuple[Sound, ...]:
    """A sound for each unit; speech of two units is the needle's sentence."""
    rows, telling = rows_of(split), rows_of(split, sentences=True)
    single = random.choice(rows) if random.random() < 0.4 else None
    teller = random.choice(telling)
    sounds = []
    for unit, fact in enumerate(timeline.heard):
        look = random.randrange(LOOKS)
        if fact is None:
            sounds.append(Sound(None, "", 0, look))
        elif fact.kind == "beeps":
            sounds.append(Sound("beeps", fact.text, 0, look))
        elif fact.first != fact.last:
            kind = "sentence" if unit == fact.first else "repeat"
            sounds.append(Sound(kind, fact.text, teller, look))
        else:
            voice = single if single is not None else random.choice(rows)
            sounds.append(Sound("speech", fact.text, voice, look))
    return tuple(sounds)


def _draw_grounds(random: Random, num_units: int, split: str) -> list[int]:
    """The needle's waves all along, or grounds that change now and then."""
    if random.random() < 0.25:
        phase = random.randrange(WAVE_PHASES)
        return [wave_ground(phase + unit * UNIT_PHASES) for unit in range(num_units)]
    change = random.choice((0.0, 0.05, 0.3, 1.0))
    ground = _draw_ground(random, split)
    grounds = []
    for _ in range(num_units):
        if random.random() < change:
            ground = _draw_ground(random, split)
        grounds.append(ground)
    return grounds


def _draw_ground(random: Random, split: str) -> int:
    if random.random() < 0.25:
        return random.randrange(FIRST_PLAIN, NUM_GROUNDS)
    return random.choice(photographs_of(split)) * CROPS + random.randrange(CROPS)
