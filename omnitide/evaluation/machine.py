"""The machine and the versions of a run, without loading a backend."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from omnitide import __version__
from omnitide.backends import auto_backend, describe_backend

PACKAGES = ("numpy", "av", "tokenizers", "safetensors")


def backend_name(name: str) -> str:
    """The backend that `auto` takes here; any other name as it is."""
    return auto_backend().name if name == "auto" else name


def machine_facts(backend: str, dtype: str | None) -> dict[str, Any]:
    """Backend, dtype, device, versions and platform, ready for JSON."""
    info = describe_backend(backend_name(backend))
    versions: dict[str, str] = {"python": platform.python_version(), "omnitide": __version__}
    versions |= info.versions
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "backend": info.name,
        "dtype": dtype or info.default_dtype,
        "device": info.device,
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "versions": versions,
    }
