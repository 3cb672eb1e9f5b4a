"""Tables and coloured words, by rich."""

from __future__ import annotations

from rich.console import Console


class PlainConsole(Console):
    """A console that takes no text for markup, and lets a broken pipe be seen."""

    def __init__(self, *, stderr: bool) -> None:
        """stderr: whether it writes there; otherwise to stdout."""
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def on_broken_pipe(self) -> None:
        """Say that the reader has gone, instead of leaving with a code of rich's own.

        Raises:
            BrokenPipeError: Always.
        """
        raise BrokenPipeError
