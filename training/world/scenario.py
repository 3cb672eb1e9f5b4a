"""Draws scripts: what is shown, said and typed in a stream, and questions about it.

A script depends on the generator alone, so a seed gives the same one everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from training.world.questions.binding import ASK_BOUND
from training.world.questions.choice import ask_choice, capital
from training.world.questions.course import ASK_COURSE
from training.world.questions.past import ASK_PAST
from training.world.questions.present import ASK_NOW
from training.world.questions.scene import Ask, Scene
from training.world.questions.wordings import CODES, GROUPS, PASS_CODES, TASKS, WORDINGS
from training.world.script import Question, Script, Typed
from training.world.staging import draw_pictures, draw_sounds
from training.world.timeline import TypedFact, draw_timeline
from training.world.vocabulary import SPLITS

ASK = {**ASK_NOW, **ASK_PAST, **ASK_BOUND, **ASK_COURSE}
"""By task, without "choice"."""

SHORT_WEIGHTS = {
    "now": 10.0, "last": 3.0, "needle": 2.0, "bind": 4.0, "typed": 1.0, "order": 1.0,
    "next": 1.0, "count": 1.0, "was": 1.0, "choice": 1.0,
}  # fmt: skip
LONG_WEIGHTS = {
    "now": 4.0, "last": 3.0, "needle": 3.0, "bind": 6.0, "typed": 2.0, "order": 2.0,
    "next": 2.0, "count": 1.5, "was": 2.0, "choice": 3.0,
}  # fmt: skip
"""How often a group of tasks is tried in streams of one unit and of `LONG_UNITS` and more."""

LONG_UNITS = 20

TRIES = 12
"""Tries for each question that is wanted; a stream has not always something to ask about."""

MOST_INLINE = 6


def draw_script(
    random: np.random.Generator,
    num_units: int,
    split: str,
    num_questions: int,
    tasks: Sequence[str] | None = None,
    *,
    once: bool = False,
) -> Script:
    """A stream with questions.

    Args:
        random: Where chance comes from; one number is taken from it.
        num_units: Units of the stream, at least 1.
        split: "train", "tune" or "test": which voices, photographs and pairs may come.
        num_questions: Questions that are wanted; a poor stream may give fewer.
        tasks: Names of the tasks to ask; None: all.
        once: No fact is needed or told by two questions, as is fair where all stand in the stream.

    Raises:
        ValueError: A number is too small, or a split or task is unknown.
    """
    if num_units < 1 or num_questions < 0:
        raise ValueError(f"[script] units >= 1, questions >= 0; got {num_units}, {num_questions}")
    if split not in SPLITS:
        raise ValueError(f"[script] split must be one of {', '.join(SPLITS)}; got {split!r}")
    unknown = sorted(set(tasks or ()) - set(TASKS))
    if unknown:
        raise ValueError(f"[script] tasks must be of wordings.TASKS; got {', '.join(unknown)}")
    chance = Random(int(random.integers(2**62)))
    timeline = draw_timeline(chance, num_units, split)
    pictures = draw_pictures(chance, timeline, split)
    sounds = draw_sounds(chance, timeline, split)
    scene = Scene(timeline, pictures, sounds, split)
    typed = tuple(Typed(fact.after, _typed_text(chance, fact)) for fact in timeline.typed)
    questions = _draw_questions(chance, scene, num_questions, tasks, once)
    inline = _choose_inline(chance, questions, {fact.after for fact in timeline.typed})
    return Script(pictures, sounds, typed, inline)


def _typed_text(random: Random, fact: TypedFact) -> str:
    if fact.name is None:
        return random.choice(PASS_CODES).format(code=fact.code)
    return capital(random.choice(CODES).format(key=fact.name, code=fact.code))


def task_weights(num_units: int, tasks: Sequence[str] | None) -> tuple[list[str], list[float]]:
    """Tasks with the odds of trying each; easy ones lead in short streams, recall in long ones."""
    long = min(num_units / LONG_UNITS, 1.0)
    names, weights = [], []
    for group, members in GROUPS.items():
        weight = SHORT_WEIGHTS[group] * (1 - long) + LONG_WEIGHTS[group] * long
        for task in members:
            if tasks is None or task in tasks:
                names.append(task)
                weights.append(weight / len(members))
    return names, weights


def _draw_questions(
    random: Random, scene: Scene, wanted: int, tasks: Sequence[str] | None, once: bool
) -> list[Question]:
    names, weights = task_weights(scene.timeline.num_units, tasks)
    questions: list[Question] = []
    asked: set[tuple[int, str]] = set()
    used: set[str] = set()
    for task in random.choices(names, weights, k=wanted * TRIES):
        if len(questions) >= wanted:
            break
        found = ask_choice(scene, random) if task == "choice" else _ask(scene, random, task)
        if found is None:
            continue
        ask, prompt = found
        if (ask.after, prompt) in asked or (once and not used.isdisjoint(ask.bases)):
            continue
        asked.add((ask.after, prompt))
        used.update(ask.bases)
        questions.append(Question(ask.after, task, prompt, ask.answer, ask.distance, False))
    return sorted(questions, key=lambda question: question.after)


def _ask(scene: Scene, random: Random, task: str) -> tuple[Ask, str] | None:
    ask = ASK[task](scene, random)
    if ask is None:
        return None
    wordings = WORDINGS[task]
    # The prompts of the needle and of the command line are asked as they stand, so most often.
    first = task.startswith("needle_") or task == "caption"
    wording = wordings[0] if first and random.random() < 0.4 else random.choice(wordings)
    return ask, capital(wording.format(**ask.slots))


def _choose_inline(
    random: Random, questions: list[Question], typed: set[int]
) -> tuple[Question, ...]:
    """Let some questions stand in the stream: at most one after a unit, none beside typed text."""
    count = random.randint(0, MOST_INLINE)
    chosen: dict[int, int] = {}
    for index in random.sample(range(len(questions)), min(count, len(questions))):
        after = questions[index].after
        if after not in typed and after not in chosen:
            chosen[after] = index
    picked = set(chosen.values())
    return tuple(
        Question(q.after, q.task, q.prompt, q.answer, q.distance, index in picked)
        for index, q in enumerate(questions)
    )
