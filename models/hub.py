"""Checkpoints by repository name, through the cache of huggingface_hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from omnitide.errors import CheckpointError, first_line_of

ALLOWED_FILES = ("*.safetensors", "*.json", "*.txt", "*.jinja")
"""Weights, configuration, vocabulary and chat templates; never code, never a pickle."""

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


CONFIG_ONLY = ("config.json", "preprocessor_config.json")
"""Enough to tell the family and the checkpoint's defaults."""


def resolve(model: str, files: Sequence[str] = ALLOWED_FILES) -> Path:
    """The folder of a model given as a folder or as a repository name ("owner/name").

    A folder of that name comes first. A repository is downloaded unless it is in the cache.

    Args:
        model: Folder or repository.
        files: Patterns of what to download of a repository, `ALLOWED_FILES` or fewer.

    Raises:
        CheckpointError: It is neither, or the download failed; the message says what to do.
    """
    # Path.expanduser raises for "~nobody", this leaves it as it is.
    folder = Path(os.path.expanduser(model))  # noqa: PTH111
    if model and folder.is_dir():
        return folder
    if not _REPOSITORY.fullmatch(model) or model.startswith("."):
        raise CheckpointError(
            f"[checkpoint] a model is a folder or a repository name, got {model!r}; there is no "
            "such folder, and a repository name reads owner/name, such as Qwen/Qwen2.5-Omni-3B"
        )
    return download(model, files)


def download(repository: str, files: Sequence[str] = ALLOWED_FILES) -> Path:
    """Download files of a repository by patterns; the folder in the cache.

    Raises:
        CheckpointError: No network, no such repository, or no access to it.
    """
    from huggingface_hub import snapshot_download

    # HTTPError is the base class of the HTTP client, whichever client this version uses.
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        GatedRepoError,
        HFValidationError,
        HTTPError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(repository, allow_patterns=list(files)))
    except HFValidationError as error:
        raise CheckpointError(f"[hub] {repository!r} is no repository name: {error}") from error
    except GatedRepoError as error:
        raise CheckpointError(
            f"[hub] {repository} asks for consent; give it on its page, then log in with "
            "`hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"[hub] there is no repository {repository} that you can read; check the spelling, or "
            "log in with `hf auth login` if it is private"
        ) from error
    except (HTTPError, OSError) as error:
        reason = first_line_of(error).removeprefix("Got: ")
        raise CheckpointError(
            f"[hub] {repository} is no folder here, is not in the cache and could not be "
            f"downloaded ({reason}); check the spelling and the network, or give a folder that "
            "holds the model"
        ) from error
