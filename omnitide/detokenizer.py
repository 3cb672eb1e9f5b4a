"""Text of a reply as it grows: only whole characters are handed out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

LONGEST = 8
"""Tokens after which broken bytes are given up on; a character has at most four bytes."""


class Detokenizer:
    """Holds back tokens whose bytes do not end a character yet."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._pending: list[int] = []

    def add(self, token: int) -> str:
        """Text that became whole with this token, possibly none."""
        self._pending.append(token)
        text = self._decode(self._pending)
        if text.endswith("\ufffd") and len(self._pending) < LONGEST:
            return ""
        self._pending.clear()
        return text

    def flush(self) -> str:
        """What is left at the end."""
        text = self._decode(self._pending) if self._pending else ""
        self._pending.clear()
        return text
