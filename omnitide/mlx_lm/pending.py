"""Tokens that a model has been given and that are not in units yet.

They stay on the device until they are asked for: reading a token that is still being computed would
stop the pipeline in which mlx-lm decodes one step ahead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1
"""Id of a token that was given as an embedding."""

Tokens = NDArray[np.int32]

_MOST_PARTS = 256
_LEFT_ALONE = 8  # the newest parts, which may still be being computed


class Pending:
    """Tokens in order, appended at the end and taken back from it."""

    def __init__(self, tokens: Tokens | None = None) -> None:
        self._parts: list[Any] = [] if tokens is None or not len(tokens) else [tokens]
        self.count = sum(len(p) for p in self._parts)

    def add(self, ids: Any, count: int) -> None:
        """Add the tokens of a pass; `ids` is None where they are not known."""
        self._parts.append(np.full(count, UNKNOWN, np.int32) if ids is None else ids)
        self.count += count
        if len(self._parts) > _MOST_PARTS:
            old = _joined(self._parts[:-_LEFT_ALONE])
            self._parts = [old, *self._parts[-_LEFT_ALONE:]]

    def drop(self, count: int) -> None:
        """Take the newest `count` tokens back."""
        self.count -= count
        while count:
            last = self._parts.pop()
            size = int(last.shape[0])
            if size > count:
                self._parts.append(last[: size - count])
                return
            count -= size

    def read(self) -> Tokens:
        """All of them, shape (count,). Waits for those that are still being computed."""
        tokens = _joined(self._parts)
        self._parts = [tokens] if len(tokens) else []
        return tokens


def _joined(parts: list[Any]) -> Tokens:
    return np.concatenate(
        [np.empty(0, np.int32), *(np.array(p).astype(np.int32) for p in parts)], dtype=np.int32
    )
