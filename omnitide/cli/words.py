"""Replies on stdout as they grow; the words alone, or each under a line with its question."""

from __future__ import annotations

from omnitide.cli.progress import minutes
from omnitide.cli.terminal import write_words
from omnitide.following import Event, Question
from omnitide.response import DuplexUpdate, GenerationResponse, Utterance


class Words:
    """Writes replies to stdout; every reply ends its line, an interrupted one too."""

    def __init__(self, headed: bool) -> None:
        """headed: whether a line with time and question comes before each reply."""
        self._headed = headed
        self._open = False

    def show(self, event: Event, time: float) -> None:
        """Write what an event adds at a second of the stream.

        Raises:
            BrokenPipeError: The reader of stdout has gone.
        """
        if isinstance(event, Question):
            self.end_line()
            if self._headed:
                write_words(f"[{minutes(time)}] {event.prompt}\n")
            self._open = True
        elif isinstance(event, GenerationResponse):
            write_words(event.text)
            if event.finish_reason is not None:
                self.end_line()
        elif isinstance(event, DuplexUpdate) and event.said is not None:
            self.say(event.said)

    def say(self, said: Utterance) -> None:
        """Write what a model said in a unit; every turn of it has a line of its own."""
        if said.text and not self._open:
            if self._headed:
                write_words(f"[{minutes(said.stop)}] ")
            self._open = True
        write_words(said.text)
        if not said.in_turn:
            self.end_line()

    def end_line(self) -> None:
        """End a reply that is being written."""
        if self._open:
            self._open = False
            write_words("\n")
