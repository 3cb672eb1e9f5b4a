"""What `omnitide eval` takes where an option is not given, and what a run holds fixed."""

from __future__ import annotations

from typing import Any

from omnitide.cli.options import stated
from omnitide.config import RetentionConfig

_KEPT = RetentionConfig()

FPS, CHUNK_SECONDS = 1.0, 1.0
"""The paper's: a frame and its second of sound."""

WATERMARKS = f"{_KEPT.high_watermark}/{_KEPT.low_watermark}"

CONTEXT = 60.0
"""Seconds before a question, as on StreamingBench's main leaderboard."""

KEPT: tuple[tuple[str, str, Any], ...] = (
    ("--recent-units", "newest units kept whole (default: as many as fit)", None),
    ("--image-sink", f"tokens kept of an older picture ({stated(_KEPT.image_sink)})", None),
    ("--audio-sink", f"tokens kept of an older sound ({stated(_KEPT.audio_sink)})", None),
    ("--text-budget", f"tokens kept of older text ({stated(_KEPT.text_budget)})", None),
    ("--sink-tokens", f"streaming-llm: first tokens ({stated(_KEPT.sink_tokens)})", None),
    ("--heavy-share", f"h2o: share of most attended ({stated(_KEPT.heavy_share)})", float),
    ("--text-sink", f"streaming-vlm: first text tokens ({stated(_KEPT.text_sink)})", None),
    ("--text-window", f"streaming-vlm: newest text tokens ({stated(_KEPT.text_window)})", None),
    ("--vision-window", f"streaming-vlm: seconds seen ({stated(_KEPT.vision_window)})", float),
)
"""Retention options of every setting of a run; the watermarks are swept."""
