"""OmniTide: omni-modal models on a stream of video and sound, all day, in flat memory.

import omnitide

model = omnitide.load()
for response in omnitide.stream_generate(model, "What happens?", video="clip.mp4"):
    print(response.text, end="", flush=True)
"""

from __future__ import annotations

from pathlib import Path

# In a checkout, backends/ and models/ lie beside this folder; installed, they lie in it.
if not (Path(__file__).parent / "backends").is_dir():
    __path__.append(str(Path(__file__).parents[1]))

from omnitide.config import (
    DuplexConfig,
    MediaOptions,
    MigrationConfig,
    RetentionConfig,
    SamplingConfig,
)
from omnitide.duplex import DuplexSession
from omnitide.errors import OmnitideError
from omnitide.follow import Question, follow
from omnitide.loading import load
from omnitide.response import DuplexUpdate, GenerationResponse, SessionStats, Update, Utterance
from omnitide.session import Session
from omnitide.streaming import stream_generate

__version__ = "0.1.0"

__all__ = [
    "DuplexConfig",
    "DuplexSession",
    "DuplexUpdate",
    "GenerationResponse",
    "MediaOptions",
    "MigrationConfig",
    "OmnitideError",
    "Question",
    "RetentionConfig",
    "SamplingConfig",
    "Session",
    "SessionStats",
    "Update",
    "Utterance",
    "__version__",
    "follow",
    "load",
    "stream_generate",
]
