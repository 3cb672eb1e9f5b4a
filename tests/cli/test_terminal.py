"""What reaches a terminal, a pipe, and streams that can't be written."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from omnitide.cli import main
from omnitide.cli.progress import LineMeter, ScreenMeter, make_meter, minutes
from omnitide.cli.report import bytes_in_words
from omnitide.cli.terminal import printable, say, write_words
from omnitide.response import Update


class Screen(io.TextIOWrapper):
    """A text stream in memory that calls itself a terminal."""

    def __init__(self, encoding: str = "utf-8", terminal: bool = True) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def text(self) -> str:
        self.flush()
        self.seek(0)
        return self.read()


def update(time: float, seen: int = 13584) -> Update:
    return Update(time, 86, 0.25, 0, 0, seen, 1902, 31)


@pytest.mark.parametrize("code", [*range(9), *range(11, 32), *range(127, 160)])
def test_control_characters_are_spelled_out(code: int) -> None:
    assert printable(f"a{chr(code)}b") == f"a\\x{code:02x}b"


@pytest.mark.parametrize("text", ["a\tb\nc", "grün", "視聴", "🎬", "\xa0"])
def test_other_characters_stay(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(("terminal", "shown"), [(True, "\\x1b[2Jx\n"), (False, "\x1b[2Jx\n")])
def test_only_a_terminal_is_protected(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: str
) -> None:
    screen = Screen(terminal=terminal)
    monkeypatch.setattr("sys.stdout", screen)
    write_words("\x1b[2Jx\n")
    assert screen.text() == shown


def test_words_that_an_encoding_lacks_are_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen("ascii", terminal=False)
    monkeypatch.setattr("sys.stdout", screen)
    write_words("gr\xfcn \u8996")
    assert screen.text() == "gr\\xfcn \\u8996"


def test_closed_streams_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    say("error", "to nobody")
    assert capsys.readouterr().out == ""
    monkeypatch.setattr("sys.stdout", None)
    write_words("to nobody")


def test_screen_meter_shows_time_tokens_pages_and_speed_and_gives_way() -> None:
    screen = Screen()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    meter = make_meter(console, 60.0, verbose=False)
    assert isinstance(meter, ScreenMeter)
    meter.show(update(24.0))
    meter.pause()
    before = len(screen.text())
    text = screen.text()
    line = "0:24 / 1:00  13,584 tokens seen  1,902 kept  31 pages  0.25 s/chunk"
    assert line in text
    assert text.endswith("\x1b[2K")  # the line is wiped
    screen.write("the reply\n")
    meter.show(update(26.0))
    meter.pause()
    assert line not in screen.text()[before:]
    assert "0:26 / 1:00" in screen.text()[before:]


def test_progress_is_wiped_before_words(monkeypatch: pytest.MonkeyPatch, media: Path) -> None:
    screen = Screen()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", screen)
    monkeypatch.setenv("TERM", "xterm")
    arguments = ["--video", str(media / "film.mp4"), "--ask-at", "2", "--ask-at", "4", "-m", "3"]
    assert main(["generate", *arguments, "-p", "What?"]) == 0
    before, between, after = screen.text().split("] What?\n")
    assert "tokens seen" in before
    for text, header in ((before, "[0:02"), (between, "[0:04")):
        assert text.endswith("\x1b[2K" + header)
    assert "tokens seen" in between
    assert "tokens/s" in after


@pytest.mark.parametrize(("verbose", "lines"), [(True, ["0:02", "0:06", "0:10"]), (False, [])])
def test_line_meter_writes_now_and_then(verbose: bool, lines: list[str]) -> None:
    file = io.StringIO()
    clock = iter([0.0, 4.9, 5.0, 9.9, 10.0])
    console = Console(file=file, width=40)
    assert isinstance(make_meter(console, None, verbose), LineMeter)
    meter = LineMeter(console if verbose else None, None, lambda: next(clock))
    for time in (2, 4, 6, 8, 10):
        meter.show(update(float(time)))
        meter.pause()
    assert [line.split()[0] for line in file.getvalue().splitlines()] == lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (59.9, "0:59"),
        (60, "1:00"),
        (3599, "59:59"),
        (3600, "1:00:00"),
        (36061, "10:01:01"),
    ],
)
def test_minutes(seconds: float, text: str) -> None:
    assert minutes(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (36 * 1024, "36 KiB"),
        (10_800_000, "10.3 MiB"),
        (3 * 2**30 // 2, "1.5 GiB"),
        (2**41, "2 TiB"),
    ],
)
def test_bytes_in_words(count: int, text: str) -> None:
    assert bytes_in_words(count) == text
