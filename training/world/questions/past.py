"""Questions about one fact of the past: the last of its kind, the only one, or a typed one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from omnitide.evaluation.needle.fact import WORDS
from training.world.questions.scene import Ask, Scene, age, basis
from training.world.timeline import TypedFact


def _last(kind: str) -> Callable[[Scene, Random], Ask | None]:
    """The last fact of a kind: asked before the next one comes."""

    def ask(scene: Scene, random: Random) -> Ask | None:
        facts = scene.timeline.facts[kind]
        if not facts:
            return None
        index = random.randrange(len(facts))
        fact = facts[index]
        rest = facts[index + 1 :]
        stop = rest[0].first if rest else scene.timeline.num_units
        after = random.randrange(fact.last, stop)
        return Ask(after, fact.text, age(fact, after), {}, kind, (basis(fact),))

    return ask


def _needle(kind: str) -> Callable[[Scene, Random], Ask | None]:
    """The only fact of a kind so far."""

    def ask(scene: Scene, random: Random) -> Ask | None:
        facts = scene.timeline.facts[kind]
        if not facts or (kind == "speech" and facts[0].text not in WORDS):
            return None
        fact = facts[0]
        stop = facts[1].first if len(facts) > 1 else scene.timeline.num_units
        after = random.randrange(fact.last, stop)
        return Ask(after, fact.text, age(fact, after), {}, kind, (basis(fact),))

    return ask


def _typed(scene: Scene, random: Random, facts: list[TypedFact]) -> Ask | None:
    """A typed code, asked for after a later unit."""
    if not facts:
        return None
    fact = random.choice(facts)
    after = random.randrange(fact.after + 1, scene.timeline.num_units)
    slots = {"key": fact.name} if fact.name is not None else {}
    return Ask(after, fact.code, after - fact.after, slots, "", (f"typed@{fact.after}",))


def _typed_fact(scene: Scene, random: Random) -> Ask | None:
    return _typed(scene, random, [fact for fact in scene.timeline.typed if fact.name is not None])


def _needle_typed(scene: Scene, random: Random) -> Ask | None:
    return _typed(scene, random, [fact for fact in scene.timeline.typed if fact.name is None])


ASK_PAST: dict[str, Callable[[Scene, Random], Ask | None]] = {
    "last_shape": _last("shape"),
    "last_text": _last("text"),
    "last_digits": _last("digits"),
    "last_speech": _last("speech"),
    "last_beeps": _last("beeps"),
    "needle_text": _needle("text"),
    "needle_shape": _needle("shape"),
    "needle_digits": _needle("digits"),
    "needle_tone": _needle("beeps"),
    "needle_speech": _needle("speech"),
    "needle_typed": _needle_typed,
    "typed_fact": _typed_fact,
}
"""By task; None where the stream has nothing to ask about."""
