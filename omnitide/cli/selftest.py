"""`omnitide selftest`: whether the MLX backend gives what the reference gives, on this machine.

The report is meant for an issue: what the machine is, what failed, how fast attention was.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence

from omnitide.backends import describe_backend, load_backend
from omnitide.cli.terminal import write_words
from omnitide.errors import BackendError, OmnitideError

WRONG = 1
"""Exit code where something differs."""

SHOWN = 12
"""Most differences that are listed."""


def selftest(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code: 0, or 1 where something differs.

    Raises:
        BackendError: MLX is not there.
        ConfigError: An environment variable of the MLX backend has no meaning.
    """
    info = describe_backend("mlx")
    if not info.available:
        raise BackendError(f"[selftest] mlx is not available: {info.note}")
    from omnitide.backends.mlx.switches import takes_shaders

    shaders = takes_shaders(info.accelerated)
    _say(f"omnitide selftest: {info.device}; {platform.platform()}")
    _say(", ".join(f"{name} {number}" for name, number in info.versions.items()))
    if not info.accelerated:
        _say(
            "There is no Metal here, so no shader is run: only MLX's plain operations are compared."
        )
    elif not shaders:
        _say("The shaders are turned off: only MLX's plain operations are compared.")
    dtypes = (options.dtype,) if options.dtype is not None else info.dtypes
    failed = _compare(dtypes)
    if shaders:
        failed += _write_through()
        if not options.quick:
            failed += _time()
    _say(_verdict(failed))
    return WRONG if failed else 0


def _verdict(failed: int) -> str:
    if failed == 0:
        return "All is as it should be."
    return f"{failed} checks FAILED." if failed > 1 else "1 check FAILED."


def _compare(dtypes: Sequence[str]) -> int:
    """Compare in each dtype; how many comparisons failed."""
    from omnitide.backends.mlx.selftest import compare

    reference = load_backend("reference", "float64")
    failures = []
    for dtype in dtypes:
        try:
            checks = list(compare(load_backend("mlx", dtype), reference))
        except OmnitideError as error:
            failures.append(f"{dtype}: {error}")
            _say(f"{dtype:9} FAILED, see below")
            continue
        wrong = [check for check in checks if not check.passed]
        line = f"{dtype:9} {len(checks) - len(wrong)} of {len(checks)} checks passed"
        ran = [check for check in checks if not check.fault]
        if ran:
            worst = max(ran, key=lambda check: check.error / check.allowed if check.allowed else 0)
            line += f"; largest error {worst.error:.1e} of {worst.allowed:.1e} allowed"
        _say(line)
        failures += [
            f"{dtype}: {check.name}: "
            + (check.fault or f"error {check.error:.1e}, allowed {check.allowed:.1e}")
            for check in wrong
        ]
    for line in failures[:SHOWN]:
        _say(f"FAILED  {line}")
    if len(failures) > SHOWN:
        _say(f"and {len(failures) - SHOWN} more")
    return len(failures)


def _write_through() -> int:
    """Try the switch for writing through; 1 where it is on and does not work."""
    from omnitide.backends.mlx.backend import MlxBackend
    from omnitide.backends.mlx.launch import Launcher
    from omnitide.backends.mlx.paged import PagedAttention
    from omnitide.backends.mlx.selftest import RAISED
    from omnitide.backends.mlx.switches import WRITE_THROUGH, writes_through
    from omnitide.backends.mlx.timings import appends_in_place
    from omnitide.backends.mlx.write_through import fault_of

    launcher = Launcher()
    # Made without the switch: with it, a machine where writing through fails has no backend.
    backend = MlxBackend("float32", "")
    fault: str | None
    try:
        fault = backend.run(lambda: fault_of(launcher, PagedAttention(launcher, "")))
    except RAISED as error:
        fault = str(error)
    works = "works" if fault is None else f"does not work: {fault}"
    state = "on" if writes_through() else "off"
    _say(f"writing through ({WRITE_THROUGH}, {state}) {works}")
    in_place = "in place" if backend.run(appends_in_place) else "a copy of the whole pool"
    _say(f"MLX's own scatter into a pool: {in_place}")
    return int(fault is not None and writes_through())


def _time() -> int:
    """Print the times of attention; 1 where it can't be run."""
    import mlx.core as mx

    from omnitide.backends.mlx.backend import MlxBackend
    from omnitide.backends.mlx.launch import Launcher
    from omnitide.backends.mlx.selftest import RAISED
    from omnitide.backends.mlx.timings import HEAD_DIM, HEADS, KV_HEADS, timings

    architecture = str(mx.device_info()["architecture"])
    _say(f"one layer's attention, {HEADS} heads, {KV_HEADS} KV heads of {HEAD_DIM}, ms")
    _say(f"{'cells':>7} {'queries':>8} {'shaders':>9} {'plain':>9} {'MLX dense':>10} {'GB/s':>7}")
    try:
        times = MlxBackend("bfloat16", "").run(lambda: list(timings(Launcher(), architecture)))
    except RAISED as error:
        _say(f"FAILED  {error}")
        return 1
    for t in times:
        _say(
            f"{t.cells:7,d} {t.queries:8,d} {t.shaders:9.3f} {t.plain:9.3f} {t.own:10.3f} "
            f"{t.gigabytes / t.shaders * 1e3:7.1f}"
        )
    return 0


def _say(line: str) -> None:
    write_words(f"{line}\n")
