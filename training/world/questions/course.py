"""Questions about the course of a stream: what came first, what came next, how often, whether."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from omnitide.evaluation.needle.fact import WORDS
from training.world.questions.scene import Ask, Scene, age, basis, named, single
from training.world.timeline import Fact
from training.world.vocabulary import HELD_SHAPES, SHAPE_NAMES

MOST_COUNTED = 9


def _order(kinds: tuple[str, ...], name: Callable[[Fact], str]) -> Callable[..., Ask | None]:
    """Which of two facts came first; each has come once."""

    def ask(scene: Scene, random: Random) -> Ask | None:
        facts = scene.timeline.facts[random.choice(kinds)]
        if len(facts) < 2:
            return None
        first, second = sorted(random.sample(facts, 2), key=lambda fact: fact.first)
        after = random.randrange(second.last, scene.timeline.num_units)
        if not (single(facts, first.text, after) and single(facts, second.text, after)):
            return None
        one, other = (first, second) if random.random() < 0.5 else (second, first)
        slots = {"one": name(one), "other": name(other)}
        both = (basis(first), basis(second))
        return Ask(after, first.text, age(first, after), slots, "", both)

    return ask


def _next(kind: str, name: Callable[[Fact], str]) -> Callable[..., Ask | None]:
    """The fact of a kind that followed another, which has come once."""

    def ask(scene: Scene, random: Random) -> Ask | None:
        facts = scene.timeline.facts[kind]
        if len(facts) < 2:
            return None
        index = random.randrange(len(facts) - 1)
        key, found = facts[index], facts[index + 1]
        after = random.randrange(found.last, scene.timeline.num_units)
        if not single(facts, key.text, after):
            return None
        pair = (basis(key), basis(found))
        return Ask(after, found.text, age(key, after), {"key": name(key)}, "", pair)

    return ask


def _count_speech(scene: Scene, random: Random) -> Ask | None:
    """How often a word was said. A sentence says its word twice, so none is asked about."""
    facts = scene.timeline.facts["speech"]
    if not facts:
        return None
    fact = random.choice(facts)
    if fact.first != fact.last:
        return None
    after = random.randrange(fact.last, scene.timeline.num_units)
    count = sum(other.text == fact.text and other.first <= after for other in facts)
    # Words that came once would crowd out all others in most streams.
    if count > MOST_COUNTED or (count == 1 and random.random() < 0.6):
        return None
    return Ask(after, str(count), -1, {"key": fact.text}, "", (f"count of {fact.text}",))


def _count_shape(scene: Scene, random: Random) -> Ask | None:
    after = random.randrange(scene.timeline.num_units)
    count = sum(fact.first <= after for fact in scene.timeline.facts["shape"])
    if count > MOST_COUNTED or (count == 0 and random.random() < 0.7):
        return None
    return Ask(after, str(count), -1, {}, "", ("count of shapes",))


def _was(
    kinds: tuple[str, ...], name: Callable[[Fact], str]
) -> Callable[[Scene, Random], Ask | None]:
    """Whether something was shown or said: yes and no, half of each."""

    def ask(scene: Scene, random: Random) -> Ask | None:
        kind = random.choice(kinds)
        facts = scene.timeline.facts[kind]
        if not facts:
            return None
        chosen = random.choice(facts)
        after = random.randrange(chosen.last, scene.timeline.num_units)
        if random.random() < 0.5:
            so_far = [f for f in facts if f.text == chosen.text and f.first <= after]
            distance = age(so_far[-1], after)
            return Ask(after, "yes", distance, {"key": name(chosen)}, "", (basis(so_far[-1]),))
        come = {fact.text for fact in facts if fact.first <= after}
        absent = [text for text in _texts(kind, scene.split) if text not in come]
        if not absent:
            return None
        text = random.choice(absent)
        slots = {"key": name(Fact(kind, text, 0, 0))}
        return Ask(after, "no", -1, slots, "", (f"no {kind} {text}",))

    return ask


def _texts(kind: str, split: str) -> tuple[str, ...]:
    if kind != "shape":
        return WORDS
    return tuple(t for t in SHAPE_NAMES if split != "train" or t not in HELD_SHAPES)


def _a(fact: Fact) -> str:
    """How a question names what may not have been shown: "a red circle", "the word anchor"."""
    return f"a {fact.text}" if fact.kind == "shape" else named(fact)


def _word(fact: Fact) -> str:
    return fact.text


ASK_COURSE: dict[str, Callable[[Scene, Random], Ask | None]] = {
    "order_seen": _order(("shape", "text"), named),
    "order_heard": _order(("speech",), _word),
    "next_shape": _next("shape", named),
    "next_speech": _next("speech", _word),
    "count_speech": _count_speech,
    "count_shape": _count_shape,
    "was_seen": _was(("shape", "text"), _a),
    "was_heard": _was(("speech",), _word),
}
"""By task; None where the stream has nothing to ask about."""
