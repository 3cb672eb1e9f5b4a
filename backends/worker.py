"""The one thread that owns a backend's arrays.

MLX binds arrays that are not yet computed to a stream of the thread that made them, and no other
thread can compute them. The NumPy backend needs no such thread, but shares this one's promise: a
call that has begun is finished before an interrupt is seen, so pools are never left half changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Worker:
    """Runs calls one after the other on a thread of its own."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._thread = self._executor.submit(threading.get_ident).result()

    def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` on the thread, wait, and return or raise what it does.

        On the thread itself the call is made at once, so that calls may nest.
        """
        if threading.get_ident() == self._thread:
            return function(*args, **kwargs)
        try:
            return self._executor.submit(function, *args, **kwargs).result()
        except (KeyboardInterrupt, SystemExit):
            self._drain()
            raise

    def _drain(self) -> None:
        """Wait for the call in progress, however often the waiting is interrupted.

        Calls run in order, so an empty call ends after it. Unlike the call's own future, it can
        still be asked for if the interrupt came before that future was returned.
        """
        while True:
            try:
                return self._executor.submit(_nothing).result()
            except (KeyboardInterrupt, SystemExit):
                # The first interrupt will be raised; leaving now would leave pools half changed.
                continue


def _nothing() -> None:
    return None
