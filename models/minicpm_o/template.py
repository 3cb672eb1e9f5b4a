"""The chat template of the family, for checkpoints that bring none."""

from __future__ import annotations

from omnitide.models.chat import CHATML

THINKING_CHATML = (
    CHATML + "{% if add_generation_prompt and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% endif %}"
)
"""That of Qwen3: a reply that is not to be thought about opens with an empty thought."""
