"""The registry of backends: one table, read by everything that needs to know what there is.

Importing this module imports no array library; a backend's library is imported when the backend is
described or loaded. A module named in `BACKENDS` has two functions: `describe() -> BackendInfo`,
which never fails, and `load(dtype: str) -> Backend`.

To add a backend: a folder with these two functions, and a row here. The parity suite finds it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from omnitide.backend import Backend
from omnitide.backends.info import BackendInfo
from omnitide.errors import BackendError, ConfigError

__all__ = [
    "BACKENDS",
    "BackendInfo",
    "auto_backend",
    "describe_backend",
    "describe_backends",
    "load_backend",
]

BACKENDS: dict[str, str] = {
    "mlx": "omnitide.backends.mlx",
    "cuda": "omnitide.backends.cuda",
    "reference": "omnitide.backends.reference",
}
"""Name -> module, in the order in which `auto` tries them."""


def describe_backend(name: str) -> BackendInfo:
    """What is known of one backend on this machine.

    Raises:
        ConfigError: No backend has that name.
    """
    return _module(name).describe()  # type: ignore[no-any-return]


def describe_backends() -> tuple[BackendInfo, ...]:
    """What is known of each backend on this machine, in the order of `BACKENDS`."""
    return tuple(describe_backend(name) for name in BACKENDS)


def load_backend(name: str = "auto", dtype: str | None = None) -> Backend:
    """Load a backend.

    Args:
        name: A name in `BACKENDS`, or "auto": mlx where Metal exists, cuda where CuPy and a usable
            GPU exist, otherwise reference.
        dtype: Of weights, activations and pools. None: the backend's default.

    Raises:
        ConfigError: The name is unknown, or the backend doesn't compute in that dtype.
        BackendError: The backend is not available here; the message says what to install.
    """
    info = auto_backend() if name == "auto" else describe_backend(name)
    if not info.available:
        raise BackendError(f"[backend] {info.name} is not available: {info.note}")
    chosen = info.default_dtype if dtype is None else dtype
    if chosen not in info.dtypes:
        raise ConfigError(
            f"[backend] {info.name} computes in {', '.join(info.dtypes)}; got dtype {chosen!r}"
        )
    backend: Backend = _module(info.name).load(chosen)
    return backend


def auto_backend() -> BackendInfo:
    """The backend that "auto" takes on this machine."""
    for name in BACKENDS:
        info = describe_backend(name)
        if info.accelerated:
            return info
    return describe_backend("reference")


def _module(name: str) -> ModuleType:
    if name not in BACKENDS:
        raise ConfigError(f"[backend] name must be auto, {', '.join(BACKENDS)}; got {name!r}")
    return import_module(BACKENDS[name])
