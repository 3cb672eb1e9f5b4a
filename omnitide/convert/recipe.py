"""Which matrices become how many bits.

A family says which matrices may be quantised, and which are by default: those of its language
model. Encoders, what projects their output into the language model, norms and biases stay in 16
bits. Rules of the user come on top; the last one that matches counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from omnitide.errors import ConfigError
from omnitide.models.quantized import AFFINE_BITS, AFFINE_GROUPS

KEPT = 16
"""Bits that a rule gives to what stays as it is."""

_RULE = re.compile(r"(?P<pattern>[^=]+)=(?P<bits>\d{1,9})(:(?P<group>\d{1,9}))?")


@dataclass(frozen=True, slots=True)
class Format:
    """Bits of an element, and elements that share a scale."""

    bits: int
    group_size: int

    def __post_init__(self) -> None:
        if self.bits not in AFFINE_BITS or self.group_size not in AFFINE_GROUPS:
            raise ConfigError(
                f"[convert] weights are quantised to {_one_of(AFFINE_BITS)} bits in groups of "
                f"{_one_of(AFFINE_GROUPS)}, got {self.bits} bits in groups of {self.group_size}; "
                "give others with --q-bits and --q-group-size, or in the rule"
            )

    def divides(self, columns: int) -> bool:
        """Whether rows of so many elements can be cut into groups."""
        return columns % self.group_size == 0


@dataclass(frozen=True, slots=True)
class Rule:
    """What matrices of a pattern become; `format` None: they stay as they are."""

    pattern: str
    format: Format | None

    def matches(self, module: str) -> bool:
        """Whether a module's whole canonical name fits the pattern, as file names do in a shell."""
        return fnmatchcase(module, self.pattern)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The format of everything, and the rules that say otherwise."""

    format: Format
    rules: tuple[Rule, ...] = ()

    def choose(
        self, matrices: Mapping[str, tuple[int, int]], by_default: frozenset[str]
    ) -> dict[str, Format]:
        """The format of each matrix that is to be quantised.

        Args:
            matrices: Shape of those that may be, by canonical module name.
            by_default: Those that are where no rule says otherwise. One whose columns the group
                size doesn't divide stays as it is.

        Raises:
            ConfigError: A rule matches no matrix, or asks for groups that don't divide its columns;
                or nothing would be quantised.
        """
        chosen: dict[str, Format] = {}
        for module, (_, columns) in matrices.items():
            rule = next((r for r in reversed(self.rules) if r.matches(module)), None)
            if rule is not None and rule.format is not None and not rule.format.divides(columns):
                raise ConfigError(
                    f"[convert] the group size must divide the columns: {module} has {columns:,}, "
                    f"the rule {rule.pattern!r} asks for groups of {rule.format.group_size}; give "
                    "another group size, or 16 bits to leave it as it is"
                )
            format = rule.format if rule is not None else self.format
            wanted = rule is not None or module in by_default
            if wanted and format is not None and format.divides(columns):
                chosen[module] = format
        self._check_used(matrices)
        if not chosen:
            sizes = sorted({columns for _, columns in matrices.values()})
            raise ConfigError(
                f"[convert] nothing would be quantised: groups of {self.format.group_size} in rows "
                f"of {', '.join(map(str, sizes))} elements; give another --q-group-size or --module"
            )
        return chosen

    def _check_used(self, matrices: Mapping[str, tuple[int, int]]) -> None:
        for rule in self.rules:
            if not any(rule.matches(module) for module in matrices):
                some = ", ".join(sorted(matrices)[:: max(len(matrices) // 4, 1)])
                raise ConfigError(
                    f"[convert] the rule {rule.pattern!r} must match a matrix of the model, it "
                    f"matches none; names are such as {some}"
                )


def read_rules(texts: Sequence[str], format: Format) -> tuple[Rule, ...]:
    """Rules written PATTERN=BITS or PATTERN=BITS:GROUP; 16 bits leave a matrix as it is.

    Args:
        texts: As given.
        format: Whose group size holds where a rule names none.

    Raises:
        ConfigError: One is written otherwise, or its numbers are not possible.
    """
    rules = []
    for text in texts:
        match = _RULE.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"[convert] a rule reads PATTERN=BITS or PATTERN=BITS:GROUP, such as "
                f"'*.down_proj=8', got {text!r}"
            )
        bits, group = int(match["bits"]), int(match["group"] or format.group_size)
        rules.append(Rule(match["pattern"], None if bits == KEPT else Format(bits, group)))
    return tuple(rules)


def _one_of(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:-1])) + f" or {values[-1]}"
