"""The program and what is around it: pipes that break, full disks, closed streams, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnitide.cli import main
from omnitide.cli.interrupts import AfterImports
from omnitide.cli.transcript import Transcript
from omnitide.following import Event

Program = Callable[..., Any]

unix = pytest.mark.skipif(sys.platform == "win32", reason="signals and /dev are Unix's")


@unix
def test_reader_of_words_that_leaves(
    start: Callable[..., subprocess.Popen[str]], checkpoint: Path, media: Path
) -> None:
    options = ("--model", checkpoint, "--image", media / "picture.png", "-m", 5000)
    process = start("generate", *options)
    assert process.stdout is not None
    assert process.stderr is not None
    first = process.stdout.read(3)
    process.stdout.close()
    err = process.stderr.read()
    assert len(first) == 3
    assert process.wait(60) == 2
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    assert "omnitide: error: the reader of stdout has gone\n" in err
    assert " seen, " in err, "the figures of what was done are lost"


@unix
@pytest.mark.parametrize("command", ["env --json", "models"])
def test_reader_that_never_came(start: Callable[..., subprocess.Popen[str]], command: str) -> None:
    process = start(*command.split())
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(60) == 2
    assert err == "omnitide: error: the reader of stdout has gone\n"


@unix
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_full_disk(program: Program, media: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = program("generate", "--image", media / "picture.png", "-m", 3, stdout=full)
    assert result.code == 2
    assert "omnitide: error: " in result.err
    assert "No space left" in result.err


@unix
@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-"])
def test_closed_streams(
    program_in_shell: Program, checkpoint: Path, media: Path, closed: str
) -> None:
    given = f"--model {checkpoint} --image {media / 'picture.png'}"
    result = program_in_shell(f"generate {given} -m 4 {closed}")
    assert result.returncode == 0
    assert (len(result.stdout.strip()) > 0) == (closed != "1>&-")
    assert ("tokens/s" in result.stderr) == (closed != "2>&-")
    assert "untrained" not in result.stdout


@pytest.fixture
def program_in_shell(cache_home: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs `omnitide LINE` through a shell."""

    def run(line: str) -> subprocess.CompletedProcess[str]:
        command = f'XDG_CACHE_HOME="{cache_home}" "{sys.executable}" -m omnitide {line}'
        return subprocess.run(
            command,
            shell=True,
            cwd=cache_home.parent,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@unix
def test_interrupt_reports_what_was_reached(
    start: Callable[..., subprocess.Popen[str]], checkpoint: Path, media: Path
) -> None:
    options = ("--model", checkpoint, "--ask-at", 4, "-m", 50_000, "--json", "--verbose")
    process = start("generate", "--video", media / "film.mp4", *options)
    assert process.stderr is not None
    assert "untrained" in process.stderr.readline()
    assert "tokens seen" in process.stderr.readline()  # the first chunk is in
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    found = json.loads(out)
    assert process.returncode == 130
    assert err.endswith("omnitide: error: interrupted\n")
    assert "Traceback" not in err
    assert found["broken"] == "interrupted"
    assert found["units"] >= 2  # system prefix and that chunk


def test_interrupted_reply_stays_as_far_as_it_got(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, media: Path
) -> None:
    real = Transcript.add

    def add(self: Transcript, event: Event, time: float) -> None:
        real(self, event, time)
        if len(self.replies) == 2 and self.replies[-1].tokens == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Transcript, "add", add)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    moments = ("--ask-at", 2, "--ask-at", 4)
    try:
        result = call("generate", "--video", media / "film.mp4", *moments, "-m", 9, "--json")
    finally:
        signal.signal(signal.SIGINT, before)
    found = result.json()
    assert result.code == 130
    assert found["broken"] == "interrupted"
    told = [(r["time"], r["tokens"], r["finish_reason"]) for r in found["text"]]
    assert told == [(2.0, 9, "length"), (4.0, 3, None)]
    assert found["units"] == 7  # system prefix, two chunks, two questions, two replies


@unix
def test_interrupt_of_words_ends_the_line_and_shows_the_table(
    start: Callable[..., subprocess.Popen[str]], checkpoint: Path, media: Path
) -> None:
    options = ("--model", checkpoint, "--image", media / "picture.png", "-m", 50_000)
    process = start("generate", *options)
    assert process.stdout is not None
    first = process.stdout.read(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (first + out).endswith("\n")
    assert "tokens/s" in err
    assert err.endswith("omnitide: error: interrupted\n")
    assert "Traceback" not in err


INTERRUPTED_AT = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
found = []

class Interrupt:
    def find_spec(name, path=None, target=None):
        if name == {module!r} and not found:
            found.append(name)
            print("reached", flush=True)
            {then}

sys.meta_path.insert(0, Interrupt)
sys.argv[1:] = ["generate", "--image", {picture!r}, "--model", {model!r}, "-m", "50000"]
runpy.run_module("omnitide", run_name="__main__", alter_sys=True)
"""
"""The program, with a hook where the import of a module begins."""


@unix
@pytest.mark.parametrize(
    "module", ["omnitide.cli.parser", "numpy", "rich", "omnitide.session", "omnitide.models"]
)
def test_interrupt_during_the_imports_is_one_line(
    module: str, checkpoint: Path, media: Path
) -> None:
    then = "signal.raise_signal(signal.SIGINT)"
    picture, model = str(media / "picture.png"), str(checkpoint)
    code = INTERRUPTED_AT.format(module=module, then=then, picture=picture, model=model)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "reached\n"
    assert done.returncode == 130
    assert done.stderr == "omnitide: error: interrupted\n"


SWALLOWED = "exec('try: signal.raise_signal(signal.SIGINT)\\nexcept KeyboardInterrupt: pass')"
TURNED = (
    "exec('try: signal.raise_signal(signal.SIGINT)\\n"
    "except KeyboardInterrupt as e: raise ImportError from e')"
)


@unix
@pytest.mark.parametrize("then", [SWALLOWED, TURNED])
def test_interrupt_that_an_import_would_lose_comes_after_it(
    then: str, checkpoint: Path, media: Path
) -> None:
    """As callbacks of the import system swallow it, and NumPy makes an ImportError of it."""
    picture, model = str(media / "picture.png"), str(checkpoint)
    code = INTERRUPTED_AT.format(module="numpy", then=then, picture=picture, model=model)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "reached\n"
    assert done.returncode == 130
    assert done.stderr == "omnitide: error: interrupted\n"


@unix
@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler])
def test_interrupts_are_handled_afterwards_as_before(handler: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with AfterImports():
            inside = signal.getsignal(signal.SIGINT)
        assert (inside is handler) == (handler is signal.SIG_IGN)
        assert main(["--version"]) == 0
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


@unix
@pytest.mark.parametrize("delay", [0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3])
def test_interrupt_soon_after_the_start_shows_no_traceback(
    delay: float, checkpoint: Path, media: Path
) -> None:
    """From the moment that the first import of the program's own begins in `main`."""
    picture, model = str(media / "picture.png"), str(checkpoint)
    code = INTERRUPTED_AT.format(
        module="omnitide.cli.parser", then="pass", picture=picture, model=model
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reached\n"
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.endswith("omnitide: error: interrupted\n")


def test_interrupt_before_there_is_anything_to_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], media: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("omnitide.cli.generate.load", interrupted)
    assert main(["generate", "--image", str(media / "picture.png")]) == 130
    assert capsys.readouterr() == ("", "omnitide: error: interrupted\n")


def test_memory_that_does_not_suffice_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], media: Path
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 2 TiB")

    monkeypatch.setattr("omnitide.cli.generate.load", exhausted)
    assert main(["generate", "--image", str(media / "picture.png")]) == 2
    assert "(Unable to allocate 2 TiB); ask for less with" in capsys.readouterr().err
