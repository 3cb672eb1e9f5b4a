"""Films, a small model, and the interfaces of harnesses: the installed ones, else stand-ins."""

from __future__ import annotations

import importlib.util
import sys
from abc import ABC
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from omnitide.harness.talker import Talker
from omnitide.media.clip import ClipPicture, ClipSound, write_film

SMALL = {"max_pixels": 56 * 56, "backend": "reference"}


@pytest.fixture(autouse=True)
def _private_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def checkpoint(tiny_checkpoint: Callable[..., Path]) -> str:
    """Folder of a small random checkpoint."""
    return str(tiny_checkpoint())


@pytest.fixture(scope="session")
def film(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A film of six seconds with sound, 56 x 56 pixels."""
    path = tmp_path_factory.mktemp("films") / "film.mp4"
    write_film(path, 6, ClipPicture(56, 56), ClipSound())
    return str(path)


@pytest.fixture(scope="session")
def talker(checkpoint: str) -> Talker:
    """A talker of the small model, with full history."""
    return Talker(checkpoint, policy="full", max_pixels=56 * 56, backend="reference")


@pytest.fixture
def lmms_eval(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`omnitide.harness.lmms_eval` with the installed lmms-eval, else with what it uses of it."""
    if importlib.util.find_spec("lmms_eval") is None:
        for name, module in _stand_ins().items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.delitem(sys.modules, "omnitide.harness.lmms_eval", raising=False)
    from omnitide.harness import lmms_eval

    yield lmms_eval
    monkeypatch.delitem(sys.modules, "omnitide.harness.lmms_eval", raising=False)


@pytest.fixture
def vlmevalkit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`omnitide.harness.vlmevalkit` with the installed VLMEvalKit, else with its `BaseModel`."""
    if importlib.util.find_spec("vlmeval") is None:
        base = ModuleType("vlmeval.vlm.base")
        vars(base)["BaseModel"] = _BaseModel
        for name, module in {
            "vlmeval": ModuleType("vlmeval"),
            "vlmeval.vlm": ModuleType("vlmeval.vlm"),
            "vlmeval.vlm.base": base,
        }.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.delitem(sys.modules, "omnitide.harness.vlmevalkit", raising=False)
    from omnitide.harness import vlmevalkit

    yield vlmevalkit
    monkeypatch.delitem(sys.modules, "omnitide.harness.vlmevalkit", raising=False)


# -- what the adapter uses of lmms-eval 0.7.3 ------------------------------------------------------


class _Lmms(ABC):  # noqa: B024
    is_simple = True

    def __init__(self) -> None:
        self._rank, self._world_size = 0, 1
        self.cache_hook = SimpleNamespace(add_partial=lambda attr, req, res: None)
        self.task_dict: dict[str, Any] = {}

    @staticmethod
    def _resolve_system_prompt(value: str) -> str:
        path = Path(value)
        return path.read_text().strip() if path.is_file() else value

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size


@dataclass
class _TokenCounts:
    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass
class _GenerationResult:
    text: str
    token_counts: _TokenCounts | None = None


@dataclass
class _Instance:
    request_type: str
    arguments: tuple[Any, ...]
    idx: int
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def args(self) -> tuple[Any, ...]:
        return self.arguments


@dataclass(frozen=True)
class _ModelManifest:
    model_id: str
    simple_class_path: str | None = None
    chat_class_path: str | None = None


class _ChatMessages:
    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = [
            SimpleNamespace(
                role=message["role"],
                content=[SimpleNamespace(**content) for content in message["content"]],
            )
            for message in messages
        ]


def _stand_ins() -> dict[str, ModuleType]:
    contents = {
        "lmms_eval": {},
        "lmms_eval.api": {},
        "lmms_eval.api.instance": {
            "GenerationResult": _GenerationResult,
            "Instance": _Instance,
            "TokenCounts": _TokenCounts,
        },
        "lmms_eval.api.model": {"lmms": _Lmms},
        "lmms_eval.models": {},
        "lmms_eval.models.registry_v2": {"ModelManifest": _ModelManifest},
        "lmms_eval.protocol": {"ChatMessages": _ChatMessages},
    }
    made = {}
    for name, names in contents.items():
        made[name] = ModuleType(name)
        vars(made[name]).update(names)
    return made


# -- what the adapter uses of VLMEvalKit -----------------------------------------------------------


class _BaseModel:
    INTERLEAVE = False
    allowed_types = ("text", "image", "video")

    def __init__(self) -> None:
        self.dump_image_func = None

    def generate(self, message: Any, dataset: str | None = None) -> str:
        """Bring a message into the form of a list of dicts, as the original does."""
        if isinstance(message, str):
            message = [{"type": "text", "value": message}]
        for item in message:
            assert item["type"] in self.allowed_types
        return str(self.generate_inner(message, dataset))  # type: ignore[attr-defined]
