"""What happens in a stream, drawn at random: the facts by unit, before any question.

A fact is shown in one unit or, where its kind occurs a single time, sometimes in two that follow
each other. No unit has two facts that are seen, nor two that are heard.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from omnitide.evaluation.needle.fact import BEEPS, DIGITS, WORDS
from training.world.vocabulary import DIGIT_WORDS, HELD_SHAPES, SHAPE_NAMES, held_pair

SEEN = ("shape", "text", "digits")
HEARD = ("speech", "beeps")

MOST_TYPED = 6


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that is shown or said.

    Attributes:
        kind: "shape", "text" (a word in letters), "digits", "speech" or "beeps".
        text: "red circle", "anchor", "48213", a spoken word, or a number of beeps.
        first, last: Its units, both included.
    """

    kind: str
    text: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TypedFact:
    """A code that the user types after a unit; without a name it is the pass code."""

    after: int
    name: str | None
    code: str


@dataclass(slots=True)
class Timeline:
    """The facts of a stream.

    Attributes:
        num_units: Length.
        seen, heard: The fact of each unit; None: nothing.
        facts: By kind, in order of time.
        typed: In order of time.
    """

    num_units: int
    seen: list[Fact | None]
    heard: list[Fact | None]
    facts: dict[str, list[Fact]] = field(default_factory=dict)
    typed: list[TypedFact] = field(default_factory=list)

    def add(self, fact: Fact) -> None:
        """Put a fact into its units, which are free. Mutates the timeline but for `facts`."""
        row = self.seen if fact.kind in SEEN else self.heard
        for unit in range(fact.first, fact.last + 1):
            row[unit] = fact

    def close(self) -> None:
        """List the facts by kind, once all are in."""
        self.facts = {kind: [] for kind in SEEN + HEARD}
        for unit in range(self.num_units):
            for fact in (self.seen[unit], self.heard[unit]):
                if fact is not None and fact.first == unit:
                    self.facts[fact.kind].append(fact)


class _Texts:
    """Texts of one kind: each once until they run out, or again and again out of a few."""

    def __init__(self, random: Random, kind: str, split: str) -> None:
        self._random, self._kind = random, kind
        names = {"shape": list(SHAPE_NAMES), "text": list(WORDS), "speech": list(WORDS)}
        if kind == "shape" and split == "train":
            names["shape"] = [name for name in SHAPE_NAMES if name not in HELD_SHAPES]
        if kind == "speech" and random.random() < 0.4:
            names["speech"] += DIGIT_WORDS
        self._names = random.sample(names[kind], len(names[kind])) if kind in names else []
        self._again = random.random() < 0.35
        if self._again:
            self._names = self._names[: random.randint(2, 6)]

    def draw(self) -> str | None:
        """A text, or None where all have been used."""
        if self._kind == "digits":
            return str(self._random.randint(10 ** (DIGITS - 1), 10**DIGITS - 1))
        if self._kind == "beeps":
            return str(self._random.randint(1, len(BEEPS)))
        if self._again:
            return self._random.choice(self._names)
        return self._names.pop() if self._names else None


def draw_timeline(random: Random, num_units: int, split: str) -> Timeline:
    """A stream's facts.

    Kinds occur often, a single time or never; how often differs from stream to stream.

    Args:
        random: Where chance comes from.
        num_units: Length, at least 1.
        split: "train" keeps out what is held out from training.
    """
    timeline = Timeline(num_units, [None] * num_units, [None] * num_units)
    modes = {kind: random.choices(("many", "once", "none"), (6, 4, 1))[0] for kind in SEEN + HEARD}
    texts = {kind: _Texts(random, kind, split) for kind in SEEN + HEARD}
    for kind in SEEN + HEARD:
        if modes[kind] == "once":
            _add_single(timeline, random, texts[kind], kind, split)
    _add_many(timeline, random, texts, modes, split)
    timeline.close()
    timeline.typed = _draw_typed(random, num_units)
    return timeline


def _add_single(timeline: Timeline, random: Random, texts: _Texts, kind: str, split: str) -> None:
    row = timeline.seen if kind in SEEN else timeline.heard
    first = random.randrange(timeline.num_units)
    text = texts.draw()
    # The needle's sentence is said with words alone, and beeps fit into one unit.
    long = kind in SEEN or (kind == "speech" and text in WORDS)
    last = min(first + (long and random.random() < 0.5), timeline.num_units - 1)
    if text is None or any(row[unit] is not None for unit in range(first, last + 1)):
        return
    fact = Fact(kind, text, first, last)
    if _allowed(timeline, fact, split):
        timeline.add(fact)


def _add_many(
    timeline: Timeline, random: Random, texts: dict[str, _Texts], modes: dict[str, str], split: str
) -> None:
    seen = [kind for kind in SEEN if modes[kind] == "many"]
    heard = [kind for kind in HEARD if modes[kind] == "many"]
    shares = {kind: random.uniform(0.2, 1) for kind in seen + heard}
    if "beeps" in shares:
        shares["beeps"] *= 0.5
    short = timeline.num_units <= 4
    density = random.uniform(0.4 if short else 0.1, 0.9)
    with_picture, alone = random.uniform(0.4, 1), random.uniform(0, 0.7)
    for unit in range(timeline.num_units):
        if seen and timeline.seen[unit] is None and random.random() < density:
            _add_one(timeline, random, texts, seen, shares, unit, split)
        odds = alone if timeline.seen[unit] is None else with_picture
        if heard and timeline.heard[unit] is None and random.random() < odds:
            _add_one(timeline, random, texts, heard, shares, unit, split)


def _add_one(
    timeline: Timeline,
    random: Random,
    texts: dict[str, _Texts],
    kinds: list[str],
    shares: dict[str, float],
    unit: int,
    split: str,
) -> None:
    kind = random.choices(kinds, [shares[name] for name in kinds])[0]
    text = texts[kind].draw()
    if text is None:
        return
    fact = Fact(kind, text, unit, unit)
    if _allowed(timeline, fact, split):
        timeline.add(fact)


def _allowed(timeline: Timeline, fact: Fact, split: str) -> bool:
    """Facts of two units stand alone; training keeps held-out pairs apart."""
    others = timeline.heard if fact.kind in SEEN else timeline.seen
    for unit in range(fact.first, fact.last + 1):
        other = others[unit]
        if other is None:
            continue
        if other.first != other.last or fact.first != fact.last:
            return False
        if split == "train" and (
            held_pair(fact.text, other.text) or held_pair(other.text, fact.text)
        ):
            return False
    return True


def _draw_typed(random: Random, num_units: int) -> list[TypedFact]:
    """Some codes with names, and a pass code; each after a unit of its own, but the last."""
    places = list(range(num_units - 1))
    random.shuffle(places)
    drawn = []
    if places and random.random() < 0.35:
        code = str(random.randint(10 ** (DIGITS - 1), 10**DIGITS - 1))
        drawn.append(TypedFact(places.pop(), None, code))
    if random.random() < 0.5:
        count = min(len(places), random.randint(1, MOST_TYPED))
        for name in random.sample(WORDS, count):
            drawn.append(TypedFact(places.pop(), name, str(random.randint(100, 999))))
    return sorted(drawn, key=lambda fact: fact.after)
