"""Questions that tie what was shown to what was said at the same time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from training.world.questions.scene import Ask, Scene, age, basis, later_unit, named, single
from training.world.questions.wordings import NOTHING
from training.world.timeline import Fact

NOTHING_SHARE = 0.1
"""Share of questions about a moment at which there was nothing of what is asked for."""


def _heard_seen(scene: Scene, random: Random) -> Ask | None:
    """A word is named, what was shown is wanted."""
    seen = scene.timeline.seen
    fact = _key(random, scene.timeline.facts["speech"], seen, ("shape", "text"))
    if fact is None:
        return None
    return _asked(scene, random, fact, fact.text, _others(fact, seen))


def _heard_number(scene: Scene, random: Random) -> Ask | None:
    seen = scene.timeline.seen
    facts = [f for f in scene.timeline.facts["speech"] if _has(f, seen, "digits")]
    if not facts:
        return None
    fact = random.choice(facts)
    return _asked(scene, random, fact, fact.text, _others(fact, seen))


def _seen_heard(scene: Scene, random: Random) -> Ask | None:
    """A picture is named, the word that was said is wanted."""
    heard = scene.timeline.heard
    fact = _key(random, _all_seen(scene), heard, ("speech",))
    if fact is None:
        return None
    return _asked(scene, random, fact, named(fact), _others(fact, heard))


def _seen_beeps(scene: Scene, random: Random) -> Ask | None:
    heard = scene.timeline.heard
    facts = [fact for fact in _all_seen(scene) if _has(fact, heard, "beeps")]
    if not facts:
        return None
    fact = random.choice(facts)
    return _asked(scene, random, fact, named(fact), _others(fact, heard))


def _all_seen(scene: Scene) -> list[Fact]:
    facts = scene.timeline.facts
    return facts["shape"] + facts["text"] + facts["digits"]


def _others(fact: Fact, row: list[Fact | None]) -> list[Fact]:
    """The facts of the other sense in the units of a fact."""
    return [other for other in row[fact.first : fact.last + 1] if other is not None]


def _has(fact: Fact, row: list[Fact | None], *kinds: str) -> bool:
    other = row[fact.first]
    return other is not None and other.kind in kinds


def _key(
    random: Random, facts: list[Fact], row: list[Fact | None], kinds: tuple[str, ...]
) -> Fact | None:
    """A fact to ask with: mostly one with a fact of these kinds beside it, else one with none."""
    if random.random() < NOTHING_SHARE:
        fit = [fact for fact in facts if not _others(fact, row)]
    else:
        fit = [fact for fact in facts if _has(fact, row, *kinds)]
    return random.choice(fit) if fit else None


def _asked(scene: Scene, random: Random, fact: Fact, name: str, found: list[Fact]) -> Ask | None:
    after = later_unit(scene, random, fact)
    if not single(scene.timeline.facts[fact.kind], fact.text, after):
        return None
    if not found:
        return Ask(after, NOTHING, age(fact, after), {"key": name}, "", (basis(fact),))
    (other,) = found
    bases = (basis(fact), basis(other))
    return Ask(after, other.text, age(fact, after), {"key": name}, other.kind, bases)


ASK_BOUND: dict[str, Callable[[Scene, Random], Ask | None]] = {
    "bind_heard_seen": _heard_seen,
    "bind_heard_number": _heard_number,
    "bind_seen_heard": _seen_heard,
    "bind_seen_beeps": _seen_beeps,
}
"""By task; None where the stream has nothing to ask about."""
