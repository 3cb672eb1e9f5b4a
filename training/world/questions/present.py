"""Questions about the newest unit."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from training.world.questions.captions import caption
from training.world.questions.scene import Ask, Scene, basis
from training.world.questions.wordings import NOTHING, STILL
from training.world.timeline import Fact

NOTHING_SHARE = 0.15
"""Share of questions about a unit that has none of what is asked for."""


def _unit(random: Random, has: list[bool]) -> int:
    """A unit that mostly has what is asked for; which ones do is told by `has`."""
    wanted = random.random() >= NOTHING_SHARE
    units = [unit for unit, found in enumerate(has) if found == wanted]
    return random.choice(units) if units else random.randrange(len(has))


def _about(
    row: Callable[[Scene], list[Fact | None]], kinds: tuple[str, ...], nothing: str
) -> Callable[[Scene, Random], Ask]:
    """A task whose answer is the text of the unit's fact, or `nothing`."""

    def ask(scene: Scene, random: Random) -> Ask:
        facts = row(scene)
        unit = _unit(random, [fact is not None and fact.kind in kinds for fact in facts])
        fact = facts[unit]
        if fact is None or fact.kind not in kinds:
            return Ask(unit, nothing, 0, {}, "", (f"no {kinds[0]}@{unit}",))
        return Ask(unit, fact.text, 0, {}, "", (basis(fact),))

    return ask


def _seen(scene: Scene) -> list[Fact | None]:
    return scene.timeline.seen


def _heard(scene: Scene) -> list[Fact | None]:
    return scene.timeline.heard


def _count_shapes(scene: Scene, random: Random) -> Ask:
    unit = _unit(random, [picture.kind == "shape" for picture in scene.pictures])
    picture = scene.pictures[unit]
    count = picture.count if picture.kind == "shape" else 0
    return Ask(unit, str(count), 0, {}, "", (f"copies@{unit}",))


def _motion(scene: Scene, random: Random) -> Ask | None:
    units = [unit for unit, picture in enumerate(scene.pictures) if picture.kind == "shape"]
    moving = [unit for unit in units if scene.pictures[unit].motion is not None]
    if not units:
        return None
    unit = random.choice(moving if moving and random.random() < 0.75 else units)
    return Ask(unit, scene.pictures[unit].motion or STILL, 0, {}, "", (f"motion@{unit}",))


def _caption(scene: Scene, random: Random) -> Ask:
    unit = random.randrange(scene.timeline.num_units)
    text = caption(scene.pictures[unit], scene.sounds[unit])
    told = (scene.timeline.seen[unit], scene.timeline.heard[unit])
    bases = tuple(basis(fact) for fact in told if fact is not None)
    return Ask(unit, text, 0, {}, "", (*bases, f"copies@{unit}", f"motion@{unit}"))


ASK_NOW: dict[str, Callable[[Scene, Random], Ask | None]] = {
    "see": _about(_seen, ("shape",), NOTHING),
    "read": _about(_seen, ("text", "digits"), NOTHING),
    "hear": _about(_heard, ("speech",), NOTHING),
    "count_beeps": _about(_heard, ("beeps",), "0"),
    "count_shapes": _count_shapes,
    "motion": _motion,
    "caption": _caption,
}
"""By task; None where the stream has nothing to ask about."""
