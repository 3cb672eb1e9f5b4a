"""The command line, called in this process or started as a program, on really encoded media.

Films are 112 x 112 pixels and a whole number of two-second chunks long. At the default two frames
a second a chunk is then two steps of 4 x 4 image tokens with two markers, 34, and 50 audio tokens
with two markers, 52. The embedded model's vocabulary has one token a byte.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from omnitide.cli import main
from omnitide.media.clip import ClipPicture, ClipSound, write_film

FILM_SECONDS = 6

RUN = (
    "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "sys.argv.pop(0); runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
"""`python -m`, also where the tests themselves were started deaf to Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a command line did."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """The object on stdout, which must hold nothing else."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the embedded model and clip are kept during the tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _made_default(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default model and clip are the made ones, whatever ships with the package."""
    nothing = tmp_path_factory.getbasetemp() / "nothing-ships"
    monkeypatch.setattr("omnitide.embedded._shipped", lambda: nothing)


@pytest.fixture(autouse=True)
def _private_cache(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`call(*arguments)` runs a command line in this process."""

    def run(*arguments: object) -> Result:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def start(cache_home: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`start(*arguments, module=..., **options of Popen)` starts the program.

    What still runs when the test ends is killed.
    """
    started: list[subprocess.Popen[str]] = []
    # Unbuffered streams would hide what is not flushed, and what is left when a pipe breaks.
    inherited = {name: v for name, v in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment = {
        **inherited,
        "XDG_CACHE_HOME": str(cache_home),
        "COLUMNS": "100",
        "OPENBLAS_NUM_THREADS": "1",
    }

    def popen(
        *arguments: object, module: str = "omnitide", **options: Any
    ) -> subprocess.Popen[str]:
        given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        command = [sys.executable, "-c", RUN, module, *map(str, arguments)]
        started.append(subprocess.Popen(command, env=environment, cwd=cache_home.parent, **given))
        return started[-1]

    yield popen
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def program(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., Result]:
    """`program(*arguments, module=..., **options of Popen)` runs the program to its end."""

    def run(*arguments: object, **options: Any) -> Result:
        process = start(*arguments, **options)
        out, err = process.communicate(timeout=120)
        assert "Traceback" not in (err or "")
        assert "Exception ignored" not in (err or "")
        return Result(process.returncode, out or "", err or "")

    return run


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with film.mp4, silent.mp4, deaf.wav (sound alone) and picture.png."""
    folder = tmp_path_factory.mktemp("media")
    write_film(folder / "film.mp4", FILM_SECONDS, ClipPicture(), ClipSound())
    write_film(folder / "silent.mp4", FILM_SECONDS, ClipPicture(), None)
    write_film(folder / "deaf.wav", FILM_SECONDS, None, ClipSound(codec="pcm_s16le"))
    Image.new("RGB", (112, 112), (200, 30, 30)).save(folder / "picture.png")
    return folder


@pytest.fixture(scope="session")
def checkpoint(tiny_checkpoint: Callable[..., Path]) -> Path:
    """A small random checkpoint, to read only."""
    return tiny_checkpoint()
