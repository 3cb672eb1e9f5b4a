"""Text units of a stream. The stream always stands inside a user's turn.

    system  <|im_start|>system\\n ... <|im_end|>\\n<|im_start|>user\\n
    media   the family's own markers, picture and sound
    prompt  What is this?<|im_end|>\\n<|im_start|>assistant\\n
    reply   A cat.<|im_end|>\\n<|im_start|>user\\n

Each unit leaves the turn as it found it or hands it on, so that what is left after an eviction is
again a conversation. Template text is of role BOUNDARY, words are of role CONTENT.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omnitide.capacity import CLOSING
from omnitide.errors import CheckpointError
from omnitide.models.chat import CHATML, cut_template, read_template
from omnitide.models.tokenizer import TextTokenizer
from omnitide.units import Role, Unit, UnitBuilder, UnitKind

END_OF_TURN = "<|im_end|>"

# Spans of a reply: its words, the end of turn that the model wrote, what closes it.
_WORDS, _END, _CLOSING = range(3)


class ChatTemplate:
    """Makes the text units of a checkpoint.

    Attributes:
        tokenizer: Its tokenizer.
        end_of_turn: Id of the token that ends a turn.
    """

    def __init__(self, folder: Path, fallback: str = CHATML, **variables: bool) -> None:
        """Read tokenizer and chat template of a checkpoint.

        Args:
            folder: Of the checkpoint.
            fallback: The template of one that brings none.
            **variables: For the template, such as enable_thinking.

        Raises:
            CheckpointError: They can't be read, or don't fit each other.
        """
        self.tokenizer = TextTokenizer.read(folder)
        self.end_of_turn = self.tokenizer.special(END_OF_TURN)
        pieces = cut_template(read_template(folder) or fallback, **variables)
        encode = self.tokenizer.encode_template
        self._system_open = encode(pieces.system_open)
        self._user_open = encode(pieces.user_open)
        self._reply_open = encode(pieces.reply_open)
        self._reply_close = encode(pieces.reply_close)
        if not self._user_open or not self._reply_open:
            raise CheckpointError(
                "[chat] the chat template must write something before a message of the user and "
                f"before a reply; correct it or remove it from {folder}"
            )
        if len(self._reply_close) > CLOSING:
            raise CheckpointError(
                f"[chat] what closes a reply must have at most {CLOSING} tokens, it has "
                f"{len(self._reply_close)}; correct the chat template or remove it from {folder}"
            )
        if self._reply_close[:1] != [self.end_of_turn]:
            raise CheckpointError(
                f"[chat] the chat template must close a reply with {END_OF_TURN}, it has "
                f"{pieces.reply_close!r}; correct it or remove it from {folder}"
            )

    def check_vocabulary(self, size: int, ends: frozenset[int]) -> None:
        """Require ids that a vocabulary has.

        Args:
            size: Of the vocabulary.
            ends: Ids that end a reply beside the end of turn.

        Raises:
            CheckpointError: Tokenizer and configuration don't fit each other.
        """
        for what, largest in (
            ("the end-of-turn token", max(ends | {self.end_of_turn})),
            ("the tokenizer's ids", self.tokenizer.largest),
        ):
            if largest >= size:
                raise CheckpointError(
                    f"[checkpoint] {what} must be below the vocabulary's size {size}, got "
                    f"{largest}; tokenizer and config.json don't fit"
                )

    @property
    def system_open(self) -> list[int]:
        """Ids before a system message."""
        return self._system_open

    def system(self, text: str) -> Unit:
        """The system message and the opening of the user's turn."""
        builder = UnitBuilder().text(self._system_open, Role.BOUNDARY)
        builder.text(self.tokenizer.encode(text)).text(self._user_open, Role.BOUNDARY)
        return builder.build(UnitKind.SYSTEM)

    def words(self, text: str, time: float | None) -> Unit:
        """Words inside the user's turn."""
        return UnitBuilder().text(self.tokenizer.encode(text)).build(UnitKind.TEXT, time)

    def prompt(self, text: str, time: float | None, opening: Sequence[int] = ()) -> Unit:
        """A question, the end of the user's turn and the opening of the assistant's.

        Args:
            text: The question.
            time: Second of the stream.
            opening: Ids that open this reply behind what opens every one.
        """
        builder = UnitBuilder().text(self.tokenizer.encode(text))
        builder.text([*self._reply_open, *opening], Role.BOUNDARY)
        return builder.build(UnitKind.PROMPT, time)

    def reply(
        self, tokens: Sequence[int], first: int, ends: frozenset[int], time: float | None
    ) -> Unit:
        """Reply tokens after `first` earlier ones; a last one in `ends` is a boundary."""
        words = list(tokens)
        end = [words.pop()] if words and words[-1] in ends else []
        builder = UnitBuilder(first, _WORDS if words else _END).text(words)
        return builder.text(end, Role.BOUNDARY).build(UnitKind.REPLY, time)

    def closing(self, first: int, stopped: bool) -> Unit:
        """What closes a reply of `first` tokens and opens the user's turn again.

        `stopped`: whether the reply's last token ended the turn already.
        """
        tokens = self._reply_close[1:] if stopped else self._reply_close
        return UnitBuilder(first, _CLOSING).text(tokens, Role.BOUNDARY).build(UnitKind.REPLY)
