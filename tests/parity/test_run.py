"""`run`: one thread owns the arrays; a call that began is finished before an interrupt is seen."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from omnitide.backend import Backend


class Refused(Exception):
    pass


def test_run_returns_and_raises_what_the_call_does(any_backend: Backend) -> None:
    def divide(a: int, b: int) -> float:
        if b == 0:
            raise Refused("nothing to divide by")
        return a / b

    assert any_backend.run(divide, 6, b=3) == 2
    with pytest.raises(Refused, match="nothing to divide by"):
        any_backend.run(divide, 6, 0)
    assert any_backend.run(divide, 6, b=2) == 3


def test_the_same_error_object_is_raised(any_backend: Backend) -> None:
    error = Refused()

    def fail() -> None:
        raise error

    with pytest.raises(Refused) as caught:
        any_backend.run(fail)
    assert caught.value is error


def test_all_calls_share_one_thread_that_is_not_the_callers(any_backend: Backend) -> None:
    mine = any_backend.run(threading.get_ident)
    others: list[int] = []
    threads = [
        threading.Thread(target=lambda: others.append(any_backend.run(threading.get_ident)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert others == [mine] * 3
    assert mine != threading.get_ident()


def test_calls_may_nest(any_backend: Backend) -> None:
    def outer() -> tuple[int, int]:
        return threading.get_ident(), any_backend.run(threading.get_ident)

    first, second = any_backend.run(outer)
    assert first == second


def test_arrays_live_on_from_call_to_call(any_backend: Backend) -> None:
    array = any_backend.run(lambda: any_backend.asarray([1, 2]) * 2)
    assert any_backend.run(any_backend.to_numpy, array).tolist() == [2, 4]


@pytest.mark.parametrize("interrupts", [1, 3])
def test_an_interrupt_waits_for_the_call(any_backend: Backend, interrupts: int) -> None:
    started, sent, done = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        sent.wait(5)
        time.sleep(0.1)
        done.set()

    def interrupt() -> None:
        started.wait(5)
        for _ in range(interrupts):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.05)
        sent.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            any_backend.run(slow)
        assert done.is_set()
    finally:
        thread.join()
    assert any_backend.run(lambda: 7) == 7


def test_an_interrupt_outlasts_an_error_of_the_call(any_backend: Backend) -> None:
    started, sent = threading.Event(), threading.Event()

    def fail() -> None:
        started.set()
        sent.wait(5)
        time.sleep(0.1)
        raise Refused

    def interrupt() -> None:
        started.wait(5)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        sent.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            any_backend.run(fail)
    finally:
        thread.join()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_synchronize_accepts_any_number_of_arrays(any_backend: Backend, count: int) -> None:
    def call() -> list[float]:
        arrays = [any_backend.asarray(np.full(2, i)) + 1 for i in range(count)]
        any_backend.synchronize(*arrays)
        return [float(any_backend.to_numpy(array)[0]) for array in arrays]

    assert any_backend.run(call) == [i + 1 for i in range(count)]


def test_peak_memory_never_falls(any_backend: Backend) -> None:
    peak: Callable[[], int] = any_backend.peak_memory

    def call() -> list[int]:
        peaks = [peak()]
        array = any_backend.asarray(np.ones(20 * 2**20))
        any_backend.synchronize(array)
        peaks.append(peak())
        del array
        peaks.append(peak())
        return peaks

    first, held, after = any_backend.run(call)
    # The array alone has 20 Mi elements of two bytes or more.
    assert first <= held <= after
    assert held >= 40 * 2**20
