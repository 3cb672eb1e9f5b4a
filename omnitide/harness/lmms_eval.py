"""OmniTide as a model of lmms-eval, written against its version 0.7.3.

lmms-eval finds it by the entry point `lmms_eval.models`:

    python -m lmms_eval --model omnitide --model_args pretrained=FOLDER,policy=omnipick --tasks ...

Requests come in any order and without a session, so each is answered in a session of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.protocol import ChatMessages

from omnitide.errors import ConfigError
from omnitide.harness.part import Part
from omnitide.harness.talker import Reply, Talker, read_generation


class OmniTide(lmms):  # type: ignore[misc]  # untyped here
    """A chat model that sees films, pictures and sound."""

    is_simple = False

    def __init__(
        self,
        pretrained: str | None = None,
        backend: str = "auto",
        dtype: str | None = None,
        policy: str = "omnipick",
        high_watermark: int | None = None,
        low_watermark: int | None = None,
        fps: float | None = None,
        chunk_seconds: float | None = None,
        max_pixels: int | None = None,
        system_prompt: str | None = None,
        batch_size: int | str | None = 1,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        """Load the model. The arguments but for the last three are those of `Talker`.

        Args:
            pretrained: Folder or repository; None is the embedded default.
            batch_size, max_batch_size, device: Given by lmms-eval. A session is one stream, so a
                batch is one request; the device is that of the backend.

        Raises:
            OmnitideError: The model can't be loaded, or an option makes no sense.
        """
        super().__init__()
        if batch_size is not None and str(batch_size) not in ("1", "auto"):
            raise ConfigError(f"[lmms-eval] batch_size must be 1, got {batch_size}")
        self.talker = Talker(
            pretrained,
            backend=backend,
            dtype=dtype,
            policy=policy,
            high_watermark=high_watermark,
            low_watermark=low_watermark,
            fps=None if fps is None else float(fps),
            chunk_seconds=None if chunk_seconds is None else float(chunk_seconds),
            max_pixels=max_pixels,
            system_prompt=self._resolve_system_prompt(system_prompt) if system_prompt else None,
        )
        self.batch_size = 1

    def generate_until(self, requests: Sequence[Instance]) -> list[GenerationResult]:
        """Answer requests, each on its own, in their order."""
        results = []
        for request in requests:
            context, doc_to_messages, given, doc_id, task, split = request.args
            messages = doc_to_messages(self.task_dict[task][split][doc_id])
            reply = self._answer(messages, given)
            counts = TokenCounts(output_tokens=reply.tokens)
            results.append(GenerationResult(text=reply.text, token_counts=counts))
            self.cache_hook.add_partial("generate_until", (context, given), reply.text)
        return results

    def generate_until_multi_round(self, requests: Sequence[Instance]) -> list[list[str]]:
        """Answer requests of several rounds; the task says of each round what is shown and asked.

        As with lmms-eval's own chat models, a round sees what its messages hold and no more.
        """
        results = []
        for request in requests:
            _, doc_to_messages, given, doc_id, task, split = request.args
            doc = self.task_dict[task][split][doc_id]
            replies, messages, info = [self._answer(doc_to_messages(doc), given).text], None, None
            while True:
                found = doc_to_messages(
                    doc,
                    round_idx=len(replies),
                    previous_output=list(replies),
                    previous_round_info=info,
                )
                if not (isinstance(found, tuple) and len(found) == 4):
                    break
                messages, ended, _, info = found
                if ended:
                    break
                replies.append(self._answer(messages, given).text)
            results.append(replies)
        return results

    def loglikelihood(self, requests: Sequence[Instance]) -> list[tuple[float, bool]]:
        """Refuse: lmms-eval asks chat models for words only.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "[lmms-eval] omnitide answers tasks of the output types generate_until and "
            f"generate_until_multi_round, got {len(requests)} requests of loglikelihood"
        )

    def _answer(self, messages: Any, given: dict[str, Any] | None) -> Reply:
        chat = ChatMessages(messages=messages)
        system, parts = None, []
        for message in chat.messages:
            if message.role == "system":
                system = "\n".join(content.text for content in message.content)
                continue
            for content in message.content:
                parts.append(_part(content, message.role))
        return self.talker.reply(parts, read_generation(dict(given or {})), system)


def _part(content: Any, role: str) -> Part:
    if content.type == "text":
        # A stream stands inside the user's turn; what was replied before is told in it.
        return Part("text", content.text if role == "user" else f"You replied: {content.text}")
    start, stop = getattr(content, "start_time", None), getattr(content, "end_time", None)
    return Part(content.type, content.url, start, stop)
