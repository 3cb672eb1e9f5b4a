"""Known faults of StreamingBench's published files, and what is right."""

from __future__ import annotations

import re

from omnitide.evaluation.choices import without_letter

TIME_FIXES: dict[tuple[str, str], str] = {
    ("sample_132_real", "00:12450"): "00:12:45",
    ("sample_32_Anomaly_Context_Understanding", "05:11:00"): "00:05:11",
    ("sample_32_Anomaly_Context_Understanding", "00:21:00"): "00:00:21",
    ("sample_41_Scene_Understanding_26-50", "00:06:22"): "00:04:22",
}
"""Version 1: time stamps that are wrong in the published files, by film and text. The last is the
authors' own correction; the others are read from their context."""

_FRAGMENT = re.compile(r"^\s*([A-H])\.")


def repaired(options: tuple[str, ...]) -> tuple[str, ...]:
    """Options whose pieces are joined again: one without a letter belongs to that before it.

    What is lettered E or F, is empty or advertises a translator is dropped. Options of which none
    is lettered are left as they are, but for those behind the fourth.
    """
    if not any(_FRAGMENT.match(option) for option in options):
        return options[:4]
    joined: list[str] = []
    for option in options:
        letter = _FRAGMENT.match(option)
        if letter is None and joined:
            joined[-1] = f"{joined[-1].rstrip()}, {option.strip()}"
        else:
            joined.append(option)
    return tuple(
        option
        for option in joined
        if (letter := _FRAGMENT.match(option)) is None or letter[1] in "ABCD"
        if without_letter(option).strip()
    )
