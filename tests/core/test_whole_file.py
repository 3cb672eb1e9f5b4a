"""A file appears whole or not at all, and a failure leaves what was there."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnitide.errors import TraceError
from omnitide.whole_file import WholeFile


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_told_to(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with WholeFile(path, "trace", TraceError) as file:
        file.write(b"one ")
        assert path.read_text() == "old"
        file.appear()
        assert (path.read_text(), names(tmp_path)) == ("one ", ["a"])
        file.write(b"two")
    assert (path.read_text(), names(tmp_path)) == ("one two", ["a"])


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError, None])
def test_what_has_not_appeared_leaves_nothing(
    tmp_path: Path, kind: type[BaseException] | None
) -> None:
    def run() -> None:
        with WholeFile(tmp_path / "a", "trace", TraceError) as file:
            file.write(b"half")
            if kind is not None:
                raise kind

    if kind is None:
        run()
    else:
        with pytest.raises(kind):
            run()
    assert names(tmp_path) == []


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with WholeFile(tmp_path / "link", "trace", TraceError) as file:
        file.write(b"new")
        file.appear()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_told_with_what_to_do() -> None:
    match = r"^\[trace\] can't write /dev/full: No space left on device; make room on the disk"
    with (
        WholeFile("/dev/full", "trace", TraceError) as file,
        pytest.raises(TraceError, match=match),
    ):
        file.write(b"one")


@pytest.mark.parametrize("name", ["absent/a", "", "a\0b", "x" * 5000])
def test_a_place_that_can_not_be_written_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TraceError, match=r"^\[trace\] can't write "):
        WholeFile(tmp_path / name, "trace", TraceError)
    assert names(tmp_path) == []


def test_a_link_that_leads_to_itself_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "a")
    with WholeFile(tmp_path / "a", "trace", TraceError) as file:
        file.write(b"new")
        file.appear()
    assert (tmp_path / "a").read_text() == "new"
