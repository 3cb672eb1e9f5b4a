"""Models by folder or repository name; the network is replaced by what it would answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from omnitide.errors import CheckpointError
from omnitide.models.hub import resolve


def test_a_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve("owner/name") == Path("owner/name")


@pytest.mark.parametrize(
    "name", ["nowhere", "/no/such/folder", "a/b/c", "../x", "./x", "a b/c", ""]
)
def test_what_is_neither_folder_nor_repository(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", _never)
    with pytest.raises(CheckpointError, match=r"a folder or a repository name, got"):
        resolve(name)


def test_only_weights_and_text_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def download(repository: str, **options: Any) -> str:
        asked.append((repository, options))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve("Qwen/Qwen2.5-Omni-3B") == tmp_path
    patterns = ["*.safetensors", "*.json", "*.txt", "*.jinja"]
    assert asked == [("Qwen/Qwen2.5-Omni-3B", {"allow_patterns": patterns})]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            LocalEntryNotFoundError("not cached"),
            r"not in the cache.*check the spelling and the network",
        ),
        (
            LocalEntryNotFoundError("Got: why\nand much more"),
            r"^\[hub\] owner/name .* \(why\); check",
        ),
        (ConnectionError("offline"), r"offline.*and the network, or give a folder"),
        (huggingface_hub.errors.HFValidationError("too long"), r"is no repository name: too long"),
    ],
)
def test_a_failed_download_says_what_to_do(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match=message):
        resolve("owner/name")


@pytest.mark.parametrize(
    ("kind", "message"),
    [("RepositoryNotFoundError", r"no repository owner/name"), ("GatedRepoError", r"consent")],
)
def test_refusals_of_the_hub(kind: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error_type = getattr(huggingface_hub.errors, kind)

    def fail(*_: Any, **__: Any) -> str:
        # The constructor wants the HTTP client's response, which differs from version to version.
        raise error_type.__new__(error_type)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match=message):
        resolve("owner/name")


def _never(*_: Any, **__: Any) -> str:
    raise AssertionError("the hub must not be asked")
