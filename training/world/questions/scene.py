"""What every task needs to ask: the stream it looks at and the question before its words."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from training.world.script import Picture, Sound
from training.world.timeline import Fact, Timeline


@dataclass(frozen=True, slots=True)
class Scene:
    """A stream that is asked about.

    Attributes:
        timeline: Its facts.
        pictures, sounds: One each a unit.
        split: "train" asks about nothing that is held out.
    """

    timeline: Timeline
    pictures: tuple[Picture, ...]
    sounds: tuple[Sound, ...]
    split: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A question before its words.

    Attributes:
        after: The unit after which it is asked.
        answer: The one right answer.
        distance: Units to the oldest fact that the answer needs; -1: no single one.
        slots: What fills the wording.
        kind: What the answer is: a kind of fact, or "" where it can't be made a choice.
        bases: Names of the facts that the answer needs or tells.
    """

    after: int
    answer: str
    distance: int
    slots: dict[str, str]
    kind: str
    bases: tuple[str, ...]


def named(fact: Fact) -> str:
    """How a question names what was shown: "the red circle", "the word anchor"."""
    return {
        "shape": f"the {fact.text}",
        "text": f"the word {fact.text}",
        "digits": f"the number {fact.text}",
    }[fact.kind]


def single(facts: list[Fact], text: str, after: int) -> bool:
    """Whether a text has come exactly once by the end of a unit."""
    return sum(fact.text == text and fact.first <= after for fact in facts) == 1


def later_unit(scene: Scene, random: Random, fact: Fact) -> int:
    """A unit in or after a fact's last one."""
    return random.randint(fact.last, scene.timeline.num_units - 1)


def age(fact: Fact, after: int) -> int:
    """Units between a fact and the end of unit `after`; 0 while it lasts."""
    return max(after - fact.last, 0)


def basis(fact: Fact) -> str:
    """A name for a fact that no other fact of the stream has."""
    return f"{fact.kind}@{fact.first}"
