"""Time stamps of data sets, read as leniently as they are written and no further."""

from __future__ import annotations

import math
from typing import Any


def parse_moment(value: Any) -> float:
    """Seconds of a number, a numeric string, or parts by colons, each worth 60 of the next.

    Raises:
        ValueError: It is none of these, negative, or not finite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"a time stamp must be a number or hh:mm:ss, got {value!r}")
    parts = value.strip().split(":") if isinstance(value, str) else [value]
    seconds = 0.0
    try:
        for part in parts:
            seconds = seconds * 60 + float(part)
    except ValueError:
        raise ValueError(f"a time stamp must be a number or hh:mm:ss, got {value!r}") from None
    if not (math.isfinite(seconds) and seconds >= 0) or any("-" in str(part) for part in parts):
        raise ValueError(f"a time stamp must be finite and at least 0, got {value!r}")
    return seconds


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
