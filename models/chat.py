"""The pieces of a chat template between which a stream is laid out.

The template is the checkpoint's own, rendered in a sandbox with sentinels in place of messages and
cut at them; it can compute text and nothing else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from omnitide.errors import CheckpointError

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The template of Qwen models, for checkpoints that bring none."""

_SYSTEM, _FIRST, _REPLY, _SECOND = (f"omnitide-{i}-message" for i in range(4))


@dataclass(frozen=True, slots=True)
class ChatPieces:
    """Template text around messages.

    Attributes:
        system_open: Before the system message.
        user_open: After the system message, up to the user's words.
        reply_open: After the user's words, up to the reply.
        reply_close: After the reply, up to the user's next words.
    """

    system_open: str
    user_open: str
    reply_open: str
    reply_close: str


def read_template(folder: Path) -> str | None:
    """A folder's chat template, None if it has none.

    Looked for in chat_template.jinja, chat_template.json and tokenizer_config.json.

    Raises:
        CheckpointError: A file that should hold it can't be read.
    """
    plain = folder / "chat_template.jinja"
    try:
        if plain.is_file():
            return plain.read_text(encoding="utf-8")
        for name in ("chat_template.json", "tokenizer_config.json"):
            file = folder / name
            if file.is_file():
                template = _default_of(json.loads(file.read_text(encoding="utf-8")))
                if template is not None:
                    return template
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(
            f"[chat] the chat template in {folder} can't be read ({error}); download it again"
        ) from error
    return None


# What a template can make Python raise, beside jinja's own errors.
_FAILURES = (
    TemplateError,
    ArithmeticError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def cut_template(template: str, **variables: bool) -> ChatPieces:
    """Render a template around sentinels and cut it at them.

    Args:
        template: Of a checkpoint.
        **variables: Handed to the template; a template that does not read them is as it is.

    Raises:
        CheckpointError: It fails, or does not show a system message and turns in order.
    """
    messages = [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": _FIRST},
        {"role": "assistant", "content": _REPLY},
        {"role": "user", "content": _SECOND},
    ]
    try:
        asked = _render(template, messages[:2], add_generation_prompt=True, **variables)
        answered = _render(template, messages, add_generation_prompt=False, **variables)
    except _FAILURES as error:
        raise CheckpointError(
            f"[chat] the chat template fails ({error}); correct it or remove it from the folder"
        ) from error
    system_open, user_open, reply_open = _cut(asked, _SYSTEM, _FIRST)
    *_, reply_close, _ = _cut(answered, _SYSTEM, _FIRST, _REPLY, _SECOND)
    return ChatPieces(system_open, user_open, reply_open, reply_close)


def _default_of(settings: Any) -> str | None:
    """The template in a settings file: a string, or the one named default in a list."""
    template = settings.get("chat_template") if isinstance(settings, dict) else None
    if isinstance(template, list):
        named = [t for t in template if isinstance(t, dict) and t.get("name") == "default"]
        template = named[-1].get("template") if named else None
    return template if isinstance(template, str) else None


def _render(template: str, messages: list[dict[str, str]], **variables: bool) -> str:
    # Settings and extension that templates on the hub are written for.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(template).render(messages=messages, **variables)


def _refuse(message: str) -> None:
    """What templates call on messages they don't take."""
    raise TemplateError(message)


def _cut(text: str, *sentinels: str) -> list[str]:
    pieces: list[str] = []
    for sentinel in sentinels:
        before, found, text = text.partition(sentinel)
        if not found or sentinel in text:
            raise CheckpointError(
                "[chat] the chat template must show a system message and turns once each and in "
                "order; correct it or remove it from the folder"
            )
        pieces.append(before)
    return [*pieces, text]
