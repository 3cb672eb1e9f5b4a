"""A judge: a language model behind an OpenAI-compatible endpoint. Off unless it is asked for."""

from __future__ import annotations

import json
import time as clock
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from omnitide.errors import ConfigError, JudgeError

TRIES = 4
"""Requests before a server that does not answer counts as down."""

WAIT = 1.0
"""Seconds before the second try; doubled before each further one."""

PATIENT = (408, 409, 429, 500, 502, 503, 504)
"""HTTP codes after which it is tried again."""

MAX_TOKENS = 1024
"""Room for a model that thinks aloud before it answers."""


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """An answer: its words, the model by the server's account, and tokens as the server counts."""

    text: str
    model: str
    usage: dict[str, Any] = field(default_factory=dict)


class Judge:
    """Asks one model. Temperature 0, and none for models that refuse it."""

    def __init__(
        self,
        url: str,
        model: str,
        key: str | None = None,
        *,
        timeout: float = 120.0,
        sleep: Callable[[float], None] = clock.sleep,
    ) -> None:
        """Nothing is sent yet.

        Args:
            url: Base, such as http://localhost:8000/v1.
            model: Name that the server knows.
            key: Sent as a bearer token; None sends none.
            timeout: Seconds an answer may take.
            sleep: Waits between tries.

        Raises:
            ConfigError: The address is none, the model's name is empty, or the key can't be sent.
        """
        if not _is_address(url):
            raise ConfigError(
                f"[judge] --judge-url must be an http(s) address such as "
                f"http://localhost:8000/v1, got {url!r}"
            )
        if not model:
            raise ConfigError("[judge] --judge-model must name the model that judges")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise ConfigError(
                "[judge] the key must be printable ASCII on one line; check the variable that "
                "--judge-key-env names"
            )
        base = url.rstrip("/")
        self.url = base if base.endswith("/chat/completions") else f"{base}/chat/completions"
        self.model = model
        self._key, self._timeout, self._sleep = key, timeout, sleep
        self._new_style = False  # wants max_completion_tokens and no temperature

    def ask(self, prompt: str) -> JudgeReply:
        """Ask. An answer in another form than the interface's is handed on as its text.

        Raises:
            JudgeError: The server is down, or refuses; the message says what it said.
        """
        wait = WAIT
        reason = ""
        for left in range(TRIES - 1, -1, -1):
            try:
                return _reply(self._post(prompt), self.model)
            except urllib.error.HTTPError as error:
                reason = f"HTTP {error.code}: {error.read(200).decode('utf-8', 'replace')}"
                if error.code == 400 and not self._new_style:
                    self._new_style = True
                    continue
                if error.code not in PATIENT:
                    raise JudgeError(
                        f"[judge] {self.url} refuses ({reason}); check --judge-model and the key"
                    ) from error
            except (OSError, HTTPException) as error:
                reason = str(getattr(error, "reason", None) or error or type(error).__name__)
            if left:
                self._sleep(wait)
                wait *= 2
        raise JudgeError(
            f"[judge] {self.url} does not answer ({reason}); replies are kept, start it and run "
            "omnitide eval judge"
        )

    def _post(self, prompt: str) -> bytes:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
        }
        if self._new_style:
            body["max_completion_tokens"] = MAX_TOKENS
        else:
            body |= {"max_tokens": MAX_TOKENS, "temperature": 0}
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(
            self.url, json.dumps(body).encode(), headers, method="POST"
        )
        with urllib.request.urlopen(request, timeout=self._timeout) as answer:
            data: bytes = answer.read()
        return data


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        sound = parts.port is None or parts.port > 0  # a port that is none raises
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url
    return sound and plain and parts.scheme in ("http", "https") and bool(parts.hostname)


def _reply(data: bytes, model: str) -> JudgeReply:
    text = data.decode("utf-8", "replace")
    try:
        found = json.loads(text)
        words = found["choices"][0]["message"]["content"]
        usage = found.get("usage") or {}
        name = found.get("model") or model
    except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError):
        return JudgeReply(text, model)
    if not isinstance(words, str):
        words = ""
    return JudgeReply(words, str(name), usage if isinstance(usage, dict) else {})
