"""How each task is asked. Every prompt says by itself what is wanted; answers are short.

Where the needle or the command line has a prompt of its own, it is the first wording, unchanged.
"""

from __future__ import annotations

from omnitide.evaluation.needle.fact import KINDS
from omnitide.following import DEFAULT_PROMPT

NOTHING = "nothing"
"""The answer where there is none of what is asked for."""

STILL = "still"
"""How a shape moves that doesn't."""

WORDINGS: dict[str, tuple[str, ...]] = {
    "see": (
        "Which shape do you see now?",
        "What colour and shape is shown right now?",
        "Name the shape in the newest picture.",
    ),
    "read": (
        "What is written in the picture now?",
        "Read the large letters or digits that are shown now.",
        "Which word or number is shown right now?",
    ),
    "hear": (
        "Which word do you hear now?",
        "What was said just now?",
        "Which word was said in the last two seconds?",
    ),
    "count_beeps": (
        "How many beeps do you hear now?",
        "How often does the tone beep now?",
        "Count the beeps of the last two seconds.",
    ),
    "count_shapes": (
        "How many shapes do you see now?",
        "Count the shapes in the newest picture.",
        "How many shapes are shown right now?",
    ),
    "motion": (
        "Which way does the shape move now?",
        "In which direction is the shape moving right now?",
        "Where does the shape in the newest picture move?",
    ),
    "caption": (
        DEFAULT_PROMPT,
        "What do you see and hear now?",
        "Say in a few words what is shown and said right now.",
    ),
    "last_shape": (
        "Which shape was shown last?",
        "What was the last coloured shape?",
        "Name the most recent shape with its colour.",
    ),
    "last_text": (
        "Which word was shown last?",
        "What was the last word in large letters?",
        "Name the most recent word that was shown.",
    ),
    "last_digits": (
        "Which number was shown last?",
        "What was the last number in the picture?",
        "Name the most recent number that was shown.",
    ),
    "last_speech": (
        "Which word was said last?",
        "What was the last word that somebody said?",
        "Name the most recent spoken word.",
    ),
    "last_beeps": (
        "How often did the tone beep the last time?",
        "How many beeps were there the last time that a tone beeped?",
        "Count the most recent beeps.",
    ),
    "needle_text": (
        KINDS["text"].prompt,
        "A single word was shown in large letters. Which one?",
        "What was the only word in large letters?",
    ),
    "needle_shape": (
        KINDS["shape"].prompt,
        "A single coloured shape was shown. Which one?",
        "What was the only coloured shape?",
    ),
    "needle_digits": (
        KINDS["digits"].prompt,
        "A single number was shown. Which one?",
        "What was the only number in the picture?",
    ),
    "needle_tone": (
        KINDS["tone"].prompt,
        "A tone beeped at a single moment. How many beeps were there?",
        "How many beeps were there, the only time that a tone beeped?",
    ),
    "needle_speech": (
        KINDS["speech"].prompt,
        "A single word was said. Which one?",
        "What was the only word that somebody said?",
    ),
    "needle_typed": (
        KINDS["typed"].prompt,
        "What is my pass code?",
        "Which pass code did I tell you?",
    ),
    "bind_heard_seen": (
        "What was shown when the word {key} was said?",
        "Somebody said {key}. What was in the picture then?",
        "What did you see while you heard the word {key}?",
    ),
    "bind_heard_number": (
        "Which number was shown when the word {key} was said?",
        "Somebody said {key}. Which number was in the picture then?",
        "Which number did you see while you heard the word {key}?",
    ),
    "bind_seen_heard": (
        "Which word was said when {key} was shown?",
        "What was said while {key} was in the picture?",
        "Which word did you hear when you saw {key}?",
    ),
    "bind_seen_beeps": (
        "How often did the tone beep when {key} was shown?",
        "How many beeps were there while {key} was in the picture?",
        "How many beeps did you hear when you saw {key}?",
    ),
    "typed_fact": (
        "What is the code of {key}?",
        "Which code did I give you for {key}?",
        "Tell me the code of {key}.",
    ),
    "order_seen": (
        "Which was shown first, {one} or {other}?",
        "What did you see earlier, {one} or {other}?",
        "{one} or {other}: which one was in the picture first?",
    ),
    "order_heard": (
        "Which word was said first, {one} or {other}?",
        "What did you hear earlier, {one} or {other}?",
        "{one} or {other}: which one did somebody say first?",
    ),
    "next_shape": (
        "Which shape was shown next after {key}?",
        "What was the first shape that came after {key}?",
        "{key} was shown. Which shape followed?",
    ),
    "next_speech": (
        "Which word was said next after {key}?",
        "What was the first word that somebody said after {key}?",
        "Somebody said {key}. Which word followed?",
    ),
    "count_speech": (
        "How often was the word {key} said so far?",
        "How many times did somebody say {key}?",
        "Count how often you have heard the word {key}.",
    ),
    "count_shape": (
        "How often was a shape shown so far?",
        "How many times has a shape come up?",
        "Count how often a shape has been shown.",
    ),
    "was_seen": (
        "Was {key} shown?",
        "Did you see {key}?",
        "Has {key} been in the picture?",
    ),
    "was_heard": (
        "Was the word {key} said?",
        "Did you hear the word {key}?",
        "Has somebody said {key}?",
    ),
}
"""Wordings by task; "choice" puts letters after those of another task."""

CLOSINGS = (
    "Answer with the letter.",
    "Which letter is right?",
    "Choose one letter.",
)
"""What follows the options of a choice."""

CODES = (
    "The code of {key} is {code}.",
    "Remember: the code of {key} is {code}.",
    "{code} is the code of {key}.",
)
"""How the user types a code with a name."""

PASS_CODES = (
    "The pass code is {code}.",
    "My pass code is {code}.",
    "Remember my pass code: {code}.",
)
"""How the user types the pass code; the first one is the needle's."""

GROUPS: dict[str, tuple[str, ...]] = {
    "now": ("see", "read", "hear", "count_beeps", "count_shapes", "motion", "caption"),
    "last": ("last_shape", "last_text", "last_digits", "last_speech", "last_beeps"),
    "needle": (
        "needle_text", "needle_shape", "needle_digits", "needle_tone", "needle_speech",
        "needle_typed",
    ),
    "bind": ("bind_heard_seen", "bind_heard_number", "bind_seen_heard", "bind_seen_beeps"),
    "typed": ("typed_fact",),
    "order": ("order_seen", "order_heard"),
    "next": ("next_shape", "next_speech"),
    "count": ("count_speech", "count_shape"),
    "was": ("was_seen", "was_heard"),
    "choice": ("choice",),
}  # fmt: skip
"""Tasks by what they ask for, for weights and tables."""

TASKS: tuple[str, ...] = tuple(task for tasks in GROUPS.values() for task in tasks)
"""Names of all tasks."""
