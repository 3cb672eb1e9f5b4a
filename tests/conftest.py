"""Fixtures of more than one folder: backends, models, a bare cache, the comparator, and small
random checkpoints with the transformers model of one.

The package `metal_cpu_harness` can be imported by all tests: the folder `metal_cpu/harness`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from omnitide.backend import Backend
from omnitide.backends import BackendInfo, describe_backends, load_backend
from omnitide.config import MediaOptions
from omnitide.history import History
from omnitide.models import load_model
from omnitide.models.minicpm_o import tiny as minicpm_o
from omnitide.models.qwen2_5_omni.tiny import tiny_config, write_random_checkpoint
from omnitide.pages import PageTable
from omnitide.step import Step
from omnitide.units import Unit


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
def minicpm_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folder of a random MiniCPM-o checkpoint: `minicpm_checkpoint(seed, **its tiny_config's)`.

    Read-only: every test that asks for the same one gets the same folder.
    """

    @cache
    def write(seed: int = 0, **sizes: Any) -> Path:
        folder = tmp_path_factory.mktemp("minicpm")
        minicpm_o.write_random_checkpoint(folder, minicpm_o.tiny_config(**sizes), seed)
        return folder

    return write


@pytest.fixture
def packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The NumPy backend leaves quantised matrices packed, as it does those of large models."""
    monkeypatch.setattr("omnitide.backends.reference.backend.ReferenceBackend.unpacked_bytes", 0)


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


@pytest.fixture(scope="session")
def reference() -> Backend:
    """The NumPy backend in float32."""
    return load_backend("reference", "float32")


@cache
def _loaded(name: str) -> Backend:
    return load_backend(name, "float32")


@pytest.fixture(params=[pytest.param(info, id=info.name) for info in describe_backends()])
def any_backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend of the registry in float32."""
    info: BackendInfo = request.param
    if not info.available:
        reason = f"{info.name} is not available: {info.note}"
        if info.name in os.environ.get("OMNITIDE_REQUIRE_BACKENDS", "").split(","):
            pytest.fail(reason)
        pytest.skip(reason)
    return _loaded(info.name)


@pytest.fixture(scope="session")
def load() -> Callable[..., Any]:
    """The model of a folder on a backend: `load(folder, backend, media=None)`."""

    @cache
    def load_once(folder: Path, backend: Backend, media: MediaOptions | None = None) -> Any:
        return backend.run(load_model, folder, backend, media=media)

    return load_once


class BareCache:
    """History, page table and pools without policy or session; slots are taken out of order."""

    def __init__(self, model: Any, num_pages: int = 16) -> None:
        spec = model.spec
        self.model = model
        self.history = History()
        self.table = PageTable(num_pages)
        self.pools = model.backend.new_pools(
            spec.num_layers, spec.num_kv_heads, spec.head_dim, num_pages
        )
        # Neither order nor position must lean on the slot, so slots come in a random order.
        self.free = np.random.default_rng(0).permutation(len(self.table.live)).astype(np.int32)

    def prefill(self, unit: Unit, embeddings: Any, piece: int | None = None) -> NDArray[Any]:
        """Append a unit in passes of `piece` tokens; logits of all its tokens."""
        model, backend = self.model, self.model.backend
        count, start = len(unit), len(self.history)
        slots, self.free = self.free[:count], self.free[count:]
        self.history = self.history.append(unit, slots)
        rows = []
        for at in range(0, count, piece or count):
            stop = min(at + (piece or count), count)
            step = self.step(start + at, start + stop)
            hidden = model.decoder.forward_hidden(embeddings[at:stop], self.pools, step)
            rows.append(backend.to_numpy(model.decoder.logits(hidden)))
        return np.concatenate(rows)

    def step(self, start: int, stop: int) -> Step:
        """A pass whose new tokens are cells [start, stop)."""
        cells = self.history.cells[:stop]
        cos, sin = self.model.spec.rotary.tables(cells["position"])
        orders = cells["order"].astype(np.int32)
        new = slice(start, stop)
        return Step(
            cells["slot"], orders, cos, sin, cells["slot"][new], orders[new], cos[new], sin[new]
        )

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Evict the cells where `mask` is false and fill their rows with NaN."""
        freed = self.history.cells["slot"][~mask]
        self.history = self.history.keep(mask)
        if not len(freed):
            return
        spec, backend = self.model.spec, self.model.backend
        orders = np.arange(len(freed), dtype=np.int32)
        cos, sin = spec.rotary.tables(np.zeros((len(freed), 3), np.int32))
        step = Step(freed, orders, cos, sin, freed, orders, cos, sin)
        poison = backend.asarray(
            np.full((len(freed), spec.num_kv_heads, spec.head_dim), np.nan, np.float32)
        )
        for layer in range(spec.num_layers):
            backend.append(self.pools, layer, step, poison, poison)


@pytest.fixture
def bare_cache() -> type[BareCache]:
    """A cache of any model: `bare_cache(model)`. Use it on the backend's thread."""
    return BareCache


@pytest.fixture
def assert_close() -> Callable[..., None]:
    """Same shape, finite, and within a tolerance of the largest value that is right.

    2e-5 is ten times what float32 and another order of sums make of these small models.
    """

    def check(got: Any, want: Any, tolerance: float = 2e-5) -> None:
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        assert got.shape == want.shape
        assert np.isfinite(got).all()
        error, largest = np.abs(got - want).max(), np.abs(want).max()
        assert largest > 1e-3
        assert error <= tolerance * largest, f"off by {error:.3g}, largest value {largest:.3g}"

    return check
