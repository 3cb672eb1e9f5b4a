"""OmniTide as a model of VLMEvalKit, written against its `vlmeval.vlm.base.BaseModel`.

VLMEvalKit has no entry point for models: a script puts it into the table of models before it runs.
docs/evaluation.md has that script.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from vlmeval.vlm.base import BaseModel

from omnitide.harness.talker import Generation, Talker, parts_of


class OmniTide(BaseModel):  # type: ignore[misc]  # untyped here
    """A model that takes text, images and film files; sound comes from the films.

    It names no `fps` and no `nframe`: a film is cut as the talker's options say, whatever a data
    set would have.

    Attributes:
        INTERLEAVE: Words and media may alternate.
        VIDEO_LLM: Films come as files, not as frames.
    """

    INTERLEAVE = True
    VIDEO_LLM = True
    allowed_types: ClassVar[list[str]] = ["text", "image", "video"]

    def __init__(
        self, model_path: str | None = None, max_new_tokens: int = 1024, **options: Any
    ) -> None:
        """Load the model.

        Args:
            model_path: Folder or repository; None is the embedded default.
            max_new_tokens: Longest reply.
            **options: As `Talker` takes them: `policy`, `fps`, `backend`, ...

        Raises:
            OmnitideError: The model can't be loaded, or an option makes no sense.
        """
        super().__init__()
        self.talker = Talker(model_path, **options)
        self.generation = Generation(max_new_tokens)

    def generate_inner(self, message: Sequence[dict[str, Any]], dataset: str | None = None) -> str:
        """Answer a message, a list of `{"type": ..., "value": ...}`."""
        return self.talker.reply(list(parts_of(message)), self.generation).text
