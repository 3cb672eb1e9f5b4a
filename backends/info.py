"""What the registry can say of a backend without loading it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """A backend as it stands on this machine.

    Attributes:
        name: Its name in the registry.
        available: Whether it can be loaded.
        accelerated: Whether it has a device that makes `auto` take it.
        device: The device in words, empty where there is none.
        versions: Versions of the libraries it stands on, by name.
        default_dtype: The dtype taken when none is asked for.
        dtypes: The dtypes it computes in.
        note: Why it is not available and what to install, or what its user should know.
    """

    name: str
    available: bool
    accelerated: bool
    device: str
    default_dtype: str
    dtypes: tuple[str, ...]
    versions: dict[str, str] = field(default_factory=dict)
    note: str = ""
