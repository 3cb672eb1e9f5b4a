"""Small data sets in the published formats, with really encoded films, and the command line.

Films are 56 x 56 pixels, two frames a second, 8 seconds long, with sound.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from omnitide.cli import main
from omnitide.evaluation.film import Film
from omnitide.evaluation.item import Item, Question
from omnitide.evaluation.record import Answer, Record
from omnitide.media.clip import ClipPicture, ClipSound, write_film

SECONDS = 8

TINY = ("--max-pixels", 56 * 56, "--backend", "reference")
"""Options that make a run short."""

RUN = (
    "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "sys.argv.pop(0); runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


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
    """Where the embedded model is kept during the tests."""
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
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`call(*arguments)` runs `omnitide eval` in this process."""

    def run(*arguments: object) -> Result:
        code = main(["eval", *(str(argument) for argument in arguments)])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def start(cache_home: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`start(*arguments)` starts `omnitide eval` as a program; killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache_home), "OPENBLAS_NUM_THREADS": "1"}

    def popen(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", RUN, "omnitide", "eval", *map(str, arguments)]
        started.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return started[-1]

    yield popen
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film, to be linked under many names."""
    path = tmp_path_factory.mktemp("film") / "film.mp4"
    write_film(path, SECONDS, ClipPicture(width=56, height=56, fps=2.0), ClipSound())
    return path


@pytest.fixture
def films(tmp_path: Path, film: Path) -> Callable[..., Path]:
    """`films(*names)`: a folder with the film under these names; folders in them are made."""

    def link(*names: str) -> Path:
        folder = tmp_path / "films"
        for name in names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.hardlink_to(film)
        folder.mkdir(exist_ok=True)
        return folder

    return link


def choice(stamp: str, task: str = "Counting", answer: str = "B", **more: Any) -> dict[str, Any]:
    """A question of StreamingBench."""
    return {
        "task_type": task,
        "question": f"What is seen at {stamp}?",
        "time_stamp": stamp,
        "answer": answer,
        "options": ["A. a disc", "B. a bar", "C. a dog", "D. nothing"],
        "required_ability": "working memory",
        **more,
    }


@dataclass(slots=True)
class StreamingData:
    """Writes StreamingBench's files into a folder."""

    folder: Path
    written: dict[str, Any] = field(default_factory=dict)

    def write(self, name: str, content: Any) -> Path:
        """A file of that name."""
        self.folder.mkdir(exist_ok=True)
        path = self.folder / name
        path.write_text(json.dumps(content), encoding="utf-8")
        return path


@pytest.fixture
def streaming(tmp_path: Path) -> StreamingData:
    """A folder for StreamingBench's files, empty."""
    return StreamingData(tmp_path / "questions")


@pytest.fixture
def ask() -> Callable[..., dict[str, Any]]:
    """`ask(stamp, task=..., answer=..., **more)`: a question of StreamingBench."""
    return choice


@pytest.fixture
def small(
    streaming: StreamingData, films: Callable[..., Path], tiny_checkpoint: Callable[..., Path]
) -> tuple[Any, ...]:
    """Arguments of `omnitide eval` for three films with two questions each.

    The model is named, so that programs and workers take it too.
    """
    names = [f"sample_{i}_real" for i in range(3)]
    streaming.write(
        "questions_real_stream.json",
        [
            {
                "video_path": f"./videos/{name}.mp4",
                "questions": [choice("00:00:04"), choice("00:00:07", "Event Understanding", "A")],
            }
            for name in names
        ],
    )
    folder = films(*(f"{name}.mp4" for name in names))
    model = ("--model", tiny_checkpoint())
    return ("streamingbench", "--data", streaming.folder, "--videos", folder, *model, *TINY)


def make_item(name: str, *questions: Question, clip: str = "", **tags: str) -> Item:
    """An item whose film is never opened."""
    return Item(name, clip or name, Film("nowhere.mp4"), questions, tags)


def make_record(item: Item, setting: str = "full", **replies: str | None) -> Record:
    """A record with replies by question."""
    answers = tuple(Answer(name, reply, asked=1.0) for name, reply in replies.items())
    return Record(item.id, item.clip, setting, answers, loop_seconds=1.0)


@pytest.fixture
def item() -> Callable[..., Item]:
    """`item(name, *questions, clip=..., **tags)`."""
    return make_item


@pytest.fixture
def record() -> Callable[..., Record]:
    """`record(item, setting, **replies)`."""
    return make_record


@dataclass(slots=True)
class JudgeServer:
    """An OpenAI-compatible endpoint.

    Attributes:
        url: Its base.
        answer: From the prompt to the words of the judge, or to (HTTP code, body).
        requests: Bodies received.
        headers: Of the latest request.
        model: Name that it answers under.
    """

    url: str
    answer: Callable[[str], Any]
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    model: str = "judge-1"


@pytest.fixture
def judge_server() -> Iterator[JudgeServer]:
    """A judge on this machine; set `answer` to what it says."""
    server = JudgeServer("", lambda prompt: "{}")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.requests.append(body)
            server.headers = dict(self.headers)
            said = server.answer(body["messages"][0]["content"])
            code, text = said if isinstance(said, tuple) else (200, None)
            if text is None:
                message = {"message": {"role": "assistant", "content": said}}
                usage = {"total_tokens": 7}
                text = json.dumps({"model": server.model, "choices": [message], "usage": usage})
            data = text.encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Keep the output of the tests clean."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    server.url = f"http://127.0.0.1:{http.server_port}/v1"
    yield server
    http.shutdown()
    http.server_close()
