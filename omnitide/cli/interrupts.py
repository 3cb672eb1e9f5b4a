"""Ctrl-C that comes while a module is being imported waits until it is there.

Raised in the middle of an import, KeyboardInterrupt gets lost in a callback of the import system,
becomes an ImportError in NumPy's hands, and ends the process in those of MLX.
"""

from __future__ import annotations

import _thread
import signal
import sys
import time
from types import FrameType, TracebackType
from typing import Any

_IMPORTS = "<frozen importlib._bootstrap>"
"""Where the code of every import comes from, as frames say it."""

_BETWEEN = 0.02
"""Seconds from one look at a waiting interrupt to the next."""


class AfterImports:
    """Ctrl-C as Python raises it, but never inside an import. A context manager.

    Only imports that begin inside count. Where Ctrl-C is ignored or handled by somebody else, and
    outside of the main thread, nothing changes.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._outside: FrameType | None = None
        self._waiting = False

    def __enter__(self) -> None:
        self._outside = sys._getframe(1)
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return
        try:
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        except ValueError:  # not the main thread
            return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        self._outside = None  # frames hold each other, and this object

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self._in_import(frame):
            raise KeyboardInterrupt
        if not self._waiting:
            self._waiting = True
            _thread.start_new_thread(self._again, ())

    def _in_import(self, frame: FrameType | None) -> bool:
        while frame is not None and frame is not self._outside:
            if frame.f_code.co_filename == _IMPORTS:
                return True
            frame = frame.f_back
        return False

    def _again(self) -> None:
        time.sleep(_BETWEEN)
        self._waiting = False
        _thread.interrupt_main(signal.SIGINT)
