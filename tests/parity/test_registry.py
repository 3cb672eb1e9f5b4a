"""The registry: what it finds, what it refuses, and that it imports nothing until asked."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omnitide import backends
from omnitide.backend import Backend
from omnitide.backends import (
    BACKENDS,
    BackendInfo,
    auto_backend,
    describe_backend,
    describe_backends,
    load_backend,
)
from omnitide.backends import cuda as cuda_module
from omnitide.backends.cuda import device as cuda_device
from omnitide.errors import BackendError, ConfigError


def pretend(monkeypatch: pytest.MonkeyPatch, accelerated: dict[str, bool]) -> list[str]:
    """Replace the backends by pretended ones; returns the list of those that get loaded."""
    loaded: list[str] = []

    def module(name: str) -> Any:
        info = BackendInfo(name, True, accelerated.get(name, False), "", "f", ("f",))
        load = lambda dtype: loaded.append(name)  # noqa: E731
        return SimpleNamespace(describe=lambda: info, load=load)

    monkeypatch.setattr(backends, "import_module", lambda path: module(path.rpartition(".")[2]))
    return loaded


@pytest.mark.parametrize(
    ("accelerated", "chosen"),
    [
        ({"mlx": True, "cuda": True}, "mlx"),
        ({"mlx": False, "cuda": True}, "cuda"),
        ({"mlx": True, "cuda": False}, "mlx"),
        ({"mlx": False, "cuda": False}, "reference"),
    ],
)
def test_auto_takes_an_accelerator_and_else_the_reference(
    monkeypatch: pytest.MonkeyPatch, accelerated: dict[str, bool], chosen: str
) -> None:
    loaded = pretend(monkeypatch, accelerated)
    load_backend()
    assert loaded == [chosen]


def test_registered_backend_is_here(registered: BackendInfo) -> None:
    loaded = load_backend(registered.name)
    assert (loaded.name, loaded.dtype) == (registered.name, registered.default_dtype)


def test_auto_takes_what_this_machine_has() -> None:
    infos = {info.name: info for info in describe_backends()}
    want = next((n for n, i in infos.items() if i.available and i.accelerated), "reference")
    assert load_backend("auto").name == want


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="auto, mlx, cuda, reference; got 'torch'"):
        load_backend("torch")


def test_unsupported_dtypes_are_refused() -> None:
    with pytest.raises(ConfigError, match="float32, float64; got dtype 'bfloat16'"):
        load_backend("reference", "bfloat16")


def test_a_missing_backend_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_device, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"omnitide\[cuda12\].*omnitide\[cuda13\]"):
        load_backend("cuda")
    with pytest.raises(BackendError, match=r"omnitide\[cuda12\]"):
        cuda_module.load("float32")


class CudaError(Exception):
    """Stands in for CuPy's error, whose text begins with the name of the code."""


def stand_in(count: object, capability: tuple[int, int]) -> SimpleNamespace:
    """As much of CuPy as is asked before anything is computed."""

    def get_device_count() -> int:
        if isinstance(count, Exception):
            raise count
        assert isinstance(count, int)
        return count

    runtime = SimpleNamespace(
        CUDARuntimeError=CudaError,
        getDeviceCount=get_device_count,
        getDeviceProperties=lambda _: {
            "name": b"NVIDIA Test",
            "major": capability[0],
            "minor": capability[1],
            "multiProcessorCount": 10,
            "sharedMemPerBlockOptin": 101_376,
            "totalGlobalMem": 24 << 30,
        },
        driverGetVersion=lambda: 12_080,
    )
    device = SimpleNamespace(id=0)
    cuda = SimpleNamespace(runtime=runtime, Device=lambda: device)
    return SimpleNamespace(cuda=cuda, __version__="14.2.0")


@pytest.mark.parametrize(
    ("count", "capability", "said"),
    [
        (CudaError("cudaErrorInsufficientDriver: too old"), (9, 0), "driver is missing or older"),
        (CudaError("cudaErrorNoDevice: none"), (9, 0), "no NVIDIA GPU was found"),
        (CudaError("cudaErrorUnknown: ?"), (9, 0), "gives an error: cudaErrorUnknown"),
        (0, (9, 0), "no NVIDIA GPU was found"),
        (1, (7, 5), "compute capability 7.5, the kernels need 8.0 or newer"),
    ],
)
def test_cuda_says_why_a_gpu_cannot_be_used(
    count: object, capability: tuple[int, int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_device, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "cupy", stand_in(count, capability))
    info = describe_backend("cuda")
    assert not info.available
    assert not info.accelerated
    with pytest.raises(BackendError, match=re.escape(said)):
        load_backend("cuda")


def test_cuda_describes_a_usable_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_device, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "cupy", stand_in(1, (8, 9)))
    info = describe_backend("cuda")
    assert info.available
    assert info.device == "NVIDIA Test, compute capability 8.9, 24 GiB"
    assert info.versions["cuda"] == "12.8"
    assert auto_backend().name in ("cuda", "mlx")


def test_mlx_that_cannot_be_imported_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    with pytest.raises(BackendError, match=r"pip install 'mlx\[cpu\]'"):
        load_backend("mlx")


def test_descriptions_are_complete() -> None:
    infos = describe_backends()
    assert [info.name for info in infos] == list(BACKENDS)
    for info in infos:
        assert info.default_dtype in info.dtypes
        assert bool(info.device) == info.available
        assert bool(info.versions) == info.available
        assert info.available or info.note
        assert info.available or not info.accelerated


def test_backends_have_the_attributes_and_signatures_of_the_protocol(any_backend: Backend) -> None:
    info = next(i for i in describe_backends() if i.name == any_backend.name)
    assert (any_backend.dtype, any_backend.device) == (info.default_dtype, info.device)
    for name, method in vars(Backend).items():
        if name[0] != "_" and callable(method):
            want = list(inspect.signature(method).parameters.values())[1:]
            have = list(inspect.signature(getattr(any_backend, name)).parameters.values())
            assert [(p.name, p.kind, p.default) for p in have] == [
                (p.name, p.kind, p.default) for p in want
            ], name


@pytest.mark.parametrize("module", ["omnitide", "omnitide.backends", "omnitide.backends.cuda"])
def test_importing_loads_no_array_library(module: str, tmp_path: Path) -> None:
    code = (
        f"import {module}, sys; "
        "print([m for m in ('mlx', 'cupy', 'torch', 'transformers') if m in sys.modules])"
    )
    # Elsewhere than in the checkout, whose bare folder would hide the installed package.
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_module_of_the_table_has_the_two_functions() -> None:
    for path in BACKENDS.values():
        module = import_module(path)
        assert list(inspect.signature(module.describe).parameters) == []
        assert list(inspect.signature(module.load).parameters) == ["dtype"]
