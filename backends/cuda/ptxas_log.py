"""What the assembler says of each kernel in the compiler's log (`--ptxas-options=-v`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FUNCTION = re.compile(r"Function properties for '?(\w+)'?")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
_WARNING = re.compile(r"\bwarning\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a kernel takes, or a function that was not inlined (no registers or memory of its own).

    Attributes:
        registers: Of a thread.
        shared: Bytes of a block known to the compiler; a launch may ask for more.
        stack: Bytes of a thread in local memory.
        spilled: Bytes of registers stored to and loaded from local memory.
    """

    registers: int
    shared: int
    stack: int
    spilled: int


def read_usage(log: str) -> dict[str, Usage]:
    """The usage of each kernel, and of each function that was not inlined, by symbol.

    Raises:
        ValueError: Registers or stack of a kernel are not told.
    """
    kernels: list[str] = []
    stacks: dict[str, tuple[int, int]] = {}
    resources: dict[str, tuple[int, int]] = {}
    symbol = ""
    for line in log.splitlines():
        if found := _ENTRY.search(line):
            symbol = found[1]
            kernels.append(symbol)
        elif found := _FUNCTION.search(line):
            symbol = found[1]
        elif found := _STACK.search(line):
            stacks[symbol] = int(found[1]), int(found[2]) + int(found[3])
        elif found := _REGISTERS.search(line):
            shared = _SHARED.search(line)
            resources[symbol] = int(found[1]), int(shared[1]) if shared else 0
    if missing := [k for k in kernels if k not in stacks or k not in resources]:
        raise ValueError(f"the log does not tell the stack and registers of {', '.join(missing)}")
    return {symbol: Usage(*resources.get(symbol, (0, 0)), *stacks[symbol]) for symbol in stacks}


def warnings(log: str) -> tuple[str, ...]:
    """Lines that warn, of the compiler or the assembler."""
    return tuple(line for line in log.splitlines() if _WARNING.search(line))
