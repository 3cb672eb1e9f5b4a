"""What ships is used as it is; what does not ship is made, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnitide import embedded
from omnitide.embedded import default_checkpoint, default_clip
from omnitide.models.qwen2_5_omni.tiny import write_random_checkpoint


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that stands for `assets/default/`, empty; the cache is the test's own."""
    folder = tmp_path / "assets" / "default"
    folder.mkdir(parents=True)
    monkeypatch.setattr(embedded, "files", lambda package: tmp_path / package.rpartition(".")[2])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "CLIP_SECONDS", 1)
    return folder


def test_what_ships_is_taken(shipped: Path) -> None:
    write_random_checkpoint(shipped)
    (shipped / "clip.mp4").write_bytes(b"a film")
    assert default_checkpoint() == shipped
    assert default_clip() == shipped / "clip.mp4"
    assert shipped not in default_checkpoint(duplex=True).parents


def test_what_does_not_ship_is_made_once(shipped: Path) -> None:
    made, clip = default_checkpoint(), default_clip()
    assert (made / "model.safetensors").is_file()
    assert clip.read_bytes()[4:8] == b"ftyp"
    assert made != shipped != clip.parent
    assert (default_checkpoint(), default_clip()) == (made, clip)


def test_weights_may_ship_without_a_clip(shipped: Path) -> None:
    write_random_checkpoint(shipped)
    assert default_checkpoint() == shipped
    assert default_clip().parent != shipped
