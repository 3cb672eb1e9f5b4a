"""The embedded default: what `omnitide generate` runs when it is given nothing.

Checkpoint and clip are data: what lies in the folder `assets/default/` is used as it is. Where it
holds no weights, small random ones are made once and kept in the user's cache folder; where it
holds no clip, a synthetic one is. The default of duplex streams is always a made one.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from platformdirs import user_cache_path

from omnitide.media.clip import write_clip
from omnitide.models.minicpm_o import tiny as minicpm_o
from omnitide.models.qwen2_5_omni.tiny import tiny_config, write_random_checkpoint

CLIP = "clip.mp4"

CLIP_SECONDS = 60
"""Length of the synthetic clip: long enough to pass the default watermark."""

CLIP_SIZE = 224
"""Width and height of the synthetic clip, pixels."""


def default_checkpoint(duplex: bool = False) -> Path:
    """Folder of the embedded checkpoint, made if it is not there yet.

    `duplex`: one that speaks when it decides to.
    """
    if duplex:
        return _made_once("duplex", str(minicpm_o.tiny_config()), minicpm_o.write_random_checkpoint)
    if (_shipped() / "model.safetensors").is_file():
        return _shipped()
    return _made_once("model", str(tiny_config()), write_random_checkpoint)


def default_clip() -> Path:
    """The embedded clip, a real MP4 with H.264 and AAC, made if it is not there yet."""
    if (_shipped() / CLIP).is_file():
        return _shipped() / CLIP

    def write(folder: Path) -> None:
        write_clip(folder / CLIP, seconds=CLIP_SECONDS, width=CLIP_SIZE, height=CLIP_SIZE)

    return _made_once("clip", f"{CLIP_SECONDS} s, {CLIP_SIZE} px", write) / CLIP


def _shipped() -> Path:
    """The folder of what ships with the package; it may be missing."""
    return Path(str(files("omnitide.assets") / "default"))


def _made_once(kind: str, key: str, write: Callable[[Path], None]) -> Path:
    """A cache folder whose contents `write` made; it appears whole or not at all.

    Where the cache can't be written, a folder that is removed when the process ends.
    """
    from omnitide import __version__

    digest = hashlib.sha256(f"{__version__}\n{key}".encode()).hexdigest()[:16]
    folder = user_cache_path("omnitide") / f"{kind}-{digest}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=folder.parent))
    except OSError:
        made = Path(tempfile.mkdtemp(prefix="omnitide-"))
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        write(made)
        return made
    try:
        write(made)
        made.rename(folder)
    except OSError:
        # Another process was faster, or the disk is full: only the first is no error.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder
