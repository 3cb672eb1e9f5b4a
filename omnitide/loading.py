"""Loading a model by folder or repository name, or the embedded one."""

from __future__ import annotations

from pathlib import Path

from omnitide.config import FamilyDefaults, MediaOptions
from omnitide.model import OmniModel


def load(
    model: str | Path | None = None,
    *,
    backend: str = "auto",
    dtype: str | None = None,
    media: MediaOptions | None = None,
    duplex: bool = False,
) -> OmniModel:
    """Load a model onto a backend.

    Args:
        model: A folder, or a repository name to download; None takes the embedded default.
        backend: "auto", "mlx", "cuda" or "reference".
        dtype: "float32", "float16", "bfloat16" or "float64"; the backend's default if None.
        media: Pixel limits and frame rate that the encoders are to expect; `defaults_of` the model
            if None.
        duplex: Whether the embedded default is to be one that speaks when it decides to.

    Raises:
        CheckpointError: The folder is not a checkpoint of a supported family.
        BackendError: The backend is missing; the message says what to install.
        ConfigError: An unknown backend or dtype.
    """
    from omnitide.backends import load_backend
    from omnitide.embedded import default_checkpoint
    from omnitide.models import load_model
    from omnitide.models.hub import resolve

    chosen = load_backend(backend, dtype)
    folder = default_checkpoint(duplex) if model is None else resolve(str(model))
    name = "embedded default" if model is None else str(model)
    return chosen.run(load_model, folder, chosen, name=name, media=media)


def defaults_of(model: str | Path | None = None, *, duplex: bool = False) -> FamilyDefaults:
    """Defaults of a model's family and checkpoint; of a repository no weight is downloaded.

    Args:
        model, duplex: As `load` takes them.

    Raises:
        CheckpointError: The folder is not a checkpoint of a supported family.
    """
    from omnitide.embedded import default_checkpoint
    from omnitide.models import family_defaults
    from omnitide.models.hub import CONFIG_ONLY, resolve

    if model is None:
        return family_defaults(default_checkpoint(duplex))
    return family_defaults(resolve(str(model), CONFIG_ONLY))
