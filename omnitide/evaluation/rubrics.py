"""What judges are told: the benchmarks' criteria in words of ours, and JSON to answer with."""

from __future__ import annotations

from collections.abc import Sequence

SVBENCH_MARKS: dict[str, tuple[int, int]] = {
    "SA": (0, 10),
    "CC": (0, 10),
    "LC": (0, 10),
    "TU": (-1, 10),
    "IC": (0, 10),
    "OS": (0, 10),
}
"""SVBench's marks and their ranges; -1 says that time plays no part."""

ALIGNMENT = {"alignment": (0, 100)}
"""LiveSports, each commentary on its own."""

WIN = "win"
"""LiveSports, against the commentary of a baseline."""


def svbench_prompt(turns: Sequence[tuple[str, str, str]]) -> str:
    """Six marks for a chain of questions. `turns`: question, reference, reply."""
    shown = "\n\n".join(
        f"Question {i}: {question}\nReference answer {i}: {reference}\nModel's answer {i}: {reply}"
        for i, (question, reference, reply) in enumerate(turns, 1)
    )
    return (
        "Mark a model's answers about a video, given reference answers. The questions belong "
        "together; mark all answers as one.\n\n"
        f"{shown}\n\n"
        "Give whole numbers from 0 to 10:\n"
        "SA, semantic accuracy: do the answers mean what the references mean?\n"
        "CC, contextual coherence: do they fit the questions and each other?\n"
        "LC, logical consistency: are they free of contradictions?\n"
        "TU, temporal understanding: is the order and timing of events right? -1 if time plays no "
        "part.\n"
        "IC, informational completeness: is what the references hold there?\n"
        "OS, overall: a mark for the whole.\n"
        "10 is faultless, 7 to 9 good with small faults, 4 to 6 partly right, 1 to 3 mostly wrong, "
        "0 wrong or no answer.\n"
        'Reply with one JSON object and nothing else: {"SA": n, "CC": n, "LC": n, "TU": n, '
        '"IC": n, "OS": n}'
    )


def alignment_prompt(commentary: str, reference: str) -> str:
    """How well a commentary says what the human one says, 0 to 100."""
    return (
        "Mark how far a model's live commentary of a sports event says what the human commentary "
        "says: the same actions, players, results and order. Style does not count. 100: all of "
        "it; 0: none of it, or nothing is said.\n\n"
        f"Human commentary: {reference}\n\nModel's commentary: {commentary}\n\n"
        'Reply with one JSON object and nothing else: {"alignment": n}, n a whole number from 0 to '
        "100."
    )


def pair_prompt(first: str, second: str, reference: str) -> str:
    """Which of two commentaries is closer to the human one."""
    return (
        "Two live commentaries of the same sports event are compared with the human one. Say which "
        "says more of what the human commentary says; only if they are equal in that, which is "
        "closer in style.\n\n"
        f"Human commentary: {reference}\n\nCommentary A: {first}\n\nCommentary B: {second}\n\n"
        "Reply with one JSON object and nothing else: "
        '{"winner": "A"}, {"winner": "B"} or {"winner": "tie"}'
    )
