"""Questions with four options: another task's question, answered with a letter."""

from __future__ import annotations

from random import Random

from omnitide.evaluation.needle.fact import BEEPS, DIGITS, WORDS
from training.world.questions.binding import ASK_BOUND
from training.world.questions.past import ASK_PAST
from training.world.questions.scene import Ask, Scene
from training.world.questions.wordings import CLOSINGS, WORDINGS
from training.world.vocabulary import HELD_SHAPES, SHAPE_NAMES

LETTERS = "ABCD"

ASK_CHOICE = {
    task: ask
    for task, ask in {**ASK_PAST, **ASK_BOUND}.items()
    if task not in ("typed_fact", "needle_typed")
}
"""The tasks that are asked with options."""

_TASKS = tuple(ASK_CHOICE)


def ask_choice(scene: Scene, random: Random) -> tuple[Ask, str] | None:
    """A question with options and its prompt; None where the drawn task has nothing to ask."""
    task = random.choice(_TASKS)
    ask = ASK_CHOICE[task](scene, random)
    if ask is None or not ask.kind:
        return None
    # The needle's own prompts say how to answer, which a choice says in another way.
    wordings = WORDINGS[task][1:] if task.startswith("needle_") else WORDINGS[task]
    options = _options(scene, random, ask)
    lines = [random.choice(wordings).format(**ask.slots)]
    lines += [f"{letter}. {text}" for letter, text in zip(LETTERS, options, strict=True)]
    lines.append(random.choice(CLOSINGS))
    letter = LETTERS[options.index(ask.answer)]
    answered = Ask(ask.after, letter, ask.distance, {}, "", ask.bases)
    return answered, capital("\n".join(lines))


def capital(text: str) -> str:
    """A text with a capital first letter."""
    return text[:1].upper() + text[1:]


def _options(scene: Scene, random: Random, ask: Ask) -> list[str]:
    """The answer and three others: about half of them from the stream."""
    options = [ask.answer]
    known = [fact.text for fact in scene.timeline.facts[ask.kind]]
    while len(options) < len(LETTERS):
        text = random.choice(known) if random.random() < 0.5 else _any(random, ask.kind, scene)
        if text not in options:
            options.append(text)
    random.shuffle(options)
    return options


def _any(random: Random, kind: str, scene: Scene) -> str:
    if kind == "digits":
        return str(random.randint(10 ** (DIGITS - 1), 10**DIGITS - 1))
    if kind == "beeps":
        return str(random.randint(1, len(BEEPS)))
    if kind == "shape":
        text = random.choice(SHAPE_NAMES)
        while scene.split == "train" and text in HELD_SHAPES:
            text = random.choice(SHAPE_NAMES)
        return text
    return random.choice(WORDS)
