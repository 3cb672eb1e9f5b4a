"""Reading config.json value by value, with a message that says where the wrong one stands."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from omnitide.errors import CheckpointError

MOST = 2**24
"""Greatest count that a configuration may state; nothing published comes near."""

MOST_LAYERS = 1024
"""Greatest number of layers: their tensors are listed by name before any is looked for."""


class Section:
    """One object of config.json.

    Attributes:
        values: Its contents. A null counts as absent.
        path: Its name in messages.
    """

    def __init__(self, values: Mapping[str, Any], path: str) -> None:
        self.values = values
        self.path = path

    def section(self, key: str, optional: bool = False) -> Section:
        """The object under a key; an empty one if it is optional and absent."""
        value = self.values.get(key)
        if value is None and optional:
            value = {}
        if not isinstance(value, dict):
            raise CheckpointError(f"[config] {self.path} must have an object {key}, got {value!r}")
        return Section(value, key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value under a key, whatever it is."""
        value = self.values.get(key)
        return default if value is None else value

    def count(self, *keys: str, default: int | None = None) -> int:
        """The whole number above 0 under the first of these keys that is there."""
        value = next((self.values[k] for k in keys if self.values.get(k) is not None), default)
        if type(value) is not int or not 1 <= value <= MOST:
            raise CheckpointError(
                f"[config] {self.path}: {keys[0]} must be a positive integer, got {value!r}"
                + (f"; at most {MOST:,} is supported" if type(value) is int and value > 0 else "")
            )
        return value

    def layers(self, key: str) -> int:
        """The number of layers under a key."""
        value = self.count(key)
        if value > MOST_LAYERS:
            raise CheckpointError(
                f"[config] {self.path}: {key} must be at most {MOST_LAYERS:,}, got {value:,}"
            )
        return value

    def counts(self, key: str, default: list[int]) -> list[int]:
        """The whole numbers under a key, none below 0."""
        values = self.get(key, default)
        if not isinstance(values, list) or any(type(v) is not int or v < 0 for v in values):
            raise CheckpointError(
                f"[config] {self.path}: {key} must be a list of integers, got {values!r}"
            )
        return values

    def number(self, key: str, default: float) -> float:
        """The number above 0 under a key."""
        value = self.get(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value <= sys.float_info.max
        ):
            raise CheckpointError(
                f"[config] {self.path}: {key} must be a positive number, got {value!r}"
            )
        return float(value)

    def must_be(self, key: str, only: Any) -> None:
        """Refuse any value but one."""
        value = self.get(key, only)
        if value != only:
            raise CheckpointError(
                f"[config] {self.path}: {key} must be {only!r}, got {value!r}, which is not "
                "supported"
            )
