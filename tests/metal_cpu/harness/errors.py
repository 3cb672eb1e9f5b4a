"""What is wrong with a kernel, as the harness found it."""

from __future__ import annotations


class MetalError(Exception):
    """A kernel that Metal would refuse, or that it promises nothing for."""


class RuleError(MetalError):
    """The text breaks a rule of Metal's language that clang's C++ does not have."""


class CompileError(MetalError):
    """Clang refuses the text, with or without address spaces."""


class LaunchError(MetalError):
    """A race, divergence, an access out of bounds, or too much threadgroup memory."""
