"""Films whose picture tells its own time and whose sound has beeps at known moments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.media.clip import ClipPicture, ClipSound, write_film

BEEP_SECONDS = 0.05
FAST = (("preset", "ultrafast"),)


def _paint_time(second: float, height: int, width: int) -> NDArray[np.uint8]:
    """Milliseconds in binary, 16 black or white cells in four rows, low bit first."""
    bits = (round(second * 1000) >> np.arange(16)) & 1
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    grey = (bits.reshape(4, 4)[rows][:, columns] * 215 + 20).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _read_time(frame: NDArray[np.uint8]) -> int:
    height, width = frame.shape[:2]
    rows, columns = (2 * np.arange(4) + 1) * height // 8, (2 * np.arange(4) + 1) * width // 8
    return int(((frame[rows][:, columns, 1] > 128).ravel() << np.arange(16)).sum())


def _beeps(moments: Sequence[float], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 kHz at full 0.5 for 50 ms from each moment on, silence between."""
    sound = np.zeros_like(seconds)
    for moment in moments:
        on = (seconds >= moment) & (seconds < moment + BEEP_SECONDS)
        sound[on] = 0.5 * np.cos(2 * np.pi * 1000 * (seconds[on] - moment))
    return sound


def _onsets(samples: NDArray[np.float32]) -> list[float]:
    """Seconds at which a beep begins: loud after 20 ms without."""
    loud = np.flatnonzero(np.abs(samples) > 0.2)
    first = np.flatnonzero(np.diff(loud, prepend=-10_000) > 320)
    return [float(at) / 16_000 for at in loud[first]]


@pytest.fixture(scope="session")
def read_time() -> Callable[[NDArray[np.uint8]], int]:
    """Milliseconds that a picture of `time_picture` shows."""
    return _read_time


@pytest.fixture(scope="session")
def time_picture() -> Callable[..., ClipPicture]:
    """A picture track that shows the time of each frame in milliseconds, below 65.5 s."""

    def make(**options: Any) -> ClipPicture:
        chosen: dict[str, Any] = {"width": 64, "height": 64, "options": FAST, **options}
        return ClipPicture(paint=_paint_time, **chosen)

    return make


@pytest.fixture(scope="session")
def beep_sound() -> Callable[..., ClipSound]:
    """A sound track with beeps at the given seconds of the film."""

    def make(*moments: float, **options: Any) -> ClipSound:
        return ClipSound(play=partial(_beeps, moments), **options)

    return make


@pytest.fixture(scope="session")
def onsets() -> Callable[[NDArray[np.float32]], list[float]]:
    """Seconds at which beeps begin."""
    return _onsets


@pytest.fixture
def film(tmp_path: Path) -> Callable[..., Path]:
    """Writes a film into the test's folder: `film(name, seconds, picture, sound, **muxer)`."""

    def write(
        name: str,
        seconds: float,
        picture: ClipPicture | None,
        sound: ClipSound | None,
        **muxer: str,
    ) -> Path:
        path = tmp_path / name
        write_film(path, seconds, picture, sound, container_options=muxer)
        return path

    return write


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves bytes by HTTP on this machine: `serve(data, send=None) -> URL`.

    Without ranges, so that a reader can't seek. `send`: bytes after which the line is cut.
    """
    servers: list[ThreadingHTTPServer] = []

    def start(data: bytes, send: int | None = None) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[:send])

            def log_message(self, *_: object) -> None:
                """Keep the output of the tests clean."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/film"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
