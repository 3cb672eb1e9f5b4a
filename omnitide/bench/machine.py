"""The machine that a report was made on."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from omnitide import __version__
from omnitide.backend import Backend
from omnitide.backends import describe_backend

NVIDIA_SMI = "nvidia-smi"
FIELDS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit")
"""Asked of the driver's tool: present and greatest clocks, MHz, and the power limit, W."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Device and versions.

    Attributes:
        backend, dtype, device: As the backend says.
        clocks: Clocks and power limit in words; None where nobody says.
        versions: Of Python, of this package and of the backend's libraries.
        platform: Operating system and processor.
    """

    backend: str
    dtype: str
    device: str
    clocks: str | None
    versions: dict[str, str]
    platform: str

    @classmethod
    def of(cls, backend: Backend, *packages: str) -> Machine:
        """Of a backend, with the versions of further packages that are installed."""
        versions = {"python": platform.python_version(), "omnitide": __version__}
        versions |= describe_backend(backend.name).versions
        for name in packages:
            try:
                versions[name] = version(name)
            except PackageNotFoundError:
                continue
        clocks = _nvidia_clocks() if backend.name == "cuda" else None
        return cls(
            backend.name, backend.dtype, backend.device, clocks, versions, platform.platform()
        )


def _nvidia_clocks() -> str | None:
    """What the driver's tool says of the first device."""
    tool = shutil.which(NVIDIA_SMI)
    if tool is None:
        return None
    query = [tool, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    first = done.stdout.splitlines()[:1]
    values = [value.strip() for value in first[0].split(",")] if first else []
    if done.returncode or len(values) != len(FIELDS):
        return None
    return ", ".join(f"{name} {value}" for name, value in zip(FIELDS, values, strict=True))
