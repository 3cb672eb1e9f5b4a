"""OmniTide: omni-modal models on a stream of video and sound, all day, in flat memory.

import omnitide

model = omnitide.load()
for response in omnitide.stream_generate(model, "What happens?", video="clip.mp4"):
    print(response.text, end="", flush=True)

Nothing but this file is imported until a name is asked for: the command line has to be ready for
Ctrl-C before it begins with what takes long. So no module may have the name of something below.
"""

from __future__ import annotations

import os.path
from importlib import import_module
from typing import TYPE_CHECKING, Any

# In a checkout, backends/ and models/ lie beside this folder; installed, they lie in it.
# Not with pathlib, which takes longer to import than all that is needed here.
_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
if not os.path.isdir(os.path.join(_HERE, "backends")):  # noqa: PTH112, PTH118
    __path__.append(os.path.dirname(_HERE))  # noqa: PTH120

if TYPE_CHECKING:
    from omnitide.config import (
        DuplexConfig,
        MediaOptions,
        MigrationConfig,
        RetentionConfig,
        SamplingConfig,
    )
    from omnitide.duplex import DuplexSession
    from omnitide.errors import OmnitideError
    from omnitide.following import Question, follow
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

_MODULES = {
    "config": (
        "DuplexConfig",
        "MediaOptions",
        "MigrationConfig",
        "RetentionConfig",
        "SamplingConfig",
    ),
    "duplex": ("DuplexSession",),
    "errors": ("OmnitideError",),
    "following": ("Question", "follow"),
    "loading": ("load",),
    "response": ("DuplexUpdate", "GenerationResponse", "SessionStats", "Update", "Utterance"),
    "session": ("Session",),
    "streaming": ("stream_generate",),
}
"""Where the names above come from."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"omnitide.{name}")  # as after `import omnitide.errors`
        for module, names in _MODULES.items():
            if name in names:
                found = getattr(import_module(f"omnitide.{module}"), name)
                globals()[name] = found
                return found
        raise AttributeError(f"module 'omnitide' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
