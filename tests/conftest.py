"""Fixtures of more than one folder: small random checkpoints and the transformers model of one.

The package `metal_cpu_harness` can be imported by all tests: the folder `metal_cpu/harness`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from omnitide.models.qwen2_5_omni.tiny import tiny_config, write_random_checkpoint


def _add_package(name: str, folder: Path) -> None:
    """Make a folder importable by a name; pytest's import mode leaves sys.path alone."""
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


_add_package("metal_cpu_harness", Path(__file__).parent / "metal_cpu" / "harness")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folder of a random Qwen2.5-Omni checkpoint: `tiny_checkpoint(seed, **tiny_config's)`.

    Read-only: every test that asks for the same one gets the same folder.
    """

    @cache
    def write(seed: int = 0, **sizes: Any) -> Path:
        folder = tmp_path_factory.mktemp("tiny")
        write_random_checkpoint(folder, tiny_config(**sizes), seed)
        return folder

    return write


@pytest.fixture(scope="session")
def transformers_thinker() -> Callable[[Path], Any]:
    """The transformers thinker of a folder that `tiny_checkpoint` wrote, float32, on the CPU.

    The weights are handed over under transformers' own names, so that nothing of its loading or of
    ours stands between the file and the model.
    """

    @cache
    def build(folder: Path) -> Any:
        import json

        import torch
        from transformers.models.qwen2_5_omni import configuration_qwen2_5_omni as configuration
        from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as modeling

        torch.set_num_threads(1)
        values = json.loads((folder / "config.json").read_text())["thinker_config"]
        config = configuration.Qwen2_5OmniThinkerConfig(**values)
        config._attn_implementation = "eager"
        model = modeling.Qwen2_5OmniThinkerForConditionalGeneration(config).eval().float()
        stored = load_file(folder / "model.safetensors")
        renamed = {
            _transformers_name(name): torch.from_numpy(weight.astype("float32"))
            for name, weight in stored.items()
        }
        model.load_state_dict(renamed, strict=True)
        return model.requires_grad_(False)

    return build


def _transformers_name(published: str) -> str:
    """Name in transformers 5 of a tensor of a published checkpoint."""
    name = published.removeprefix("thinker.")
    if name.startswith("model."):
        return name.replace("model.", "model.language_model.", 1)
    return name if name.startswith("lm_head.") else f"model.{name}"
