"""`omnitide bench`: how long things take on this machine, beside their floors."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rich.console import Console

from omnitide.backend import Backend
from omnitide.backends import describe_backend, load_backend
from omnitide.bench import attention, decode, migrate, session, update
from omnitide.bench.ceilings import Ceilings, measure
from omnitide.bench.machine import Machine
from omnitide.bench.packing import Packing
from omnitide.bench.report import Report, Row
from omnitide.bench.settings import PEERS, Course, Settings
from omnitide.bench.shapes import LARGE, SMALL, ModelShape, make_shape
from omnitide.cli.bench_table import lines
from omnitide.cli.console import PlainConsole
from omnitide.cli.plot import open_picture
from omnitide.cli.terminal import printable, write_words
from omnitide.config import DEFAULTS, family_retention
from omnitide.errors import ConfigError

Benchmark = Callable[[Backend, Settings, Ceilings, Course], tuple[ModelShape, list[Row]]]

BENCHES: dict[str, Benchmark] = {
    "attention": attention.run,
    "migrate": migrate.run,
    "decode": decode.run,
    "update": update.run,
    "session": session.run,
}

HISTORIES = {"update": (4096, 8192, 16384, 32768)}
CPU_HISTORIES = {"update": (1024, 2048, 4096)}
OTHER_HISTORIES = (2048, 2816, 8192)
"""Where no history is given: with an accelerator, without, and of all other benchmarks."""

QUERIES = {"attention": 1, "update": 512}
ROWS = (500, 2000)
POLICIES: dict[str, tuple[str, ...]] = {"update": ("full", "omnipick")}
OTHER_POLICIES: tuple[str, ...] = ("omnipick",)


def bench(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code.

    Raises:
        ConfigError: An option, or what they make together, makes no sense.
        BackendError: The backend is not here.
        CapacityError: Something does not fit the memory.
    """
    with open_picture(options.plot) as picture:
        backend = load_backend(options.backend, options.dtype)
        settings = read_settings(options, describe_backend(backend.name).accelerated)
        screen = PlainConsole(stderr=True)
        report = _measured(options.bench, backend, settings, screen)
        if options.json:
            write_words(report.as_json() + "\n")
        else:
            write_words(printable("\n".join(lines(report))) + "\n")
        if picture is not None:
            from omnitide.bench.picture import draw

            picture.write(lambda: draw(report))
    return 0


def read_settings(options: argparse.Namespace, accelerated: bool) -> Settings:
    """Check the options; what is not given depends on whether there is an accelerator.

    Raises:
        ConfigError: See `bench`.
    """
    name = options.bench
    shape = make_shape(
        options.shape or (LARGE if accelerated else SMALL),
        *(getattr(options, field, None) for field in ("heads", "kv_heads", "head_dim")),
    )
    histories = (HISTORIES if accelerated else CPU_HISTORIES).get(name, OTHER_HISTORIES)
    given = getattr(options, "history", None)
    queries = getattr(options, "tokens", None) or getattr(options, "queries", None)
    kept = {key: getattr(options, key, None) for key in ("high_watermark", "low_watermark")}
    return Settings(
        shape=shape,
        packing=_packing(options),
        kv_bits=getattr(options, "kv_bits", None),
        layers=getattr(options, "layers", None),
        histories=tuple(histories if given is None else given),
        queries=tuple(queries or (QUERIES.get(name, 1),)),
        live=tuple(getattr(options, "live", None) or ("scattered",)),
        rows=tuple(getattr(options, "rows", None) or ROWS),
        policies=tuple(getattr(options, "policy", None) or POLICIES.get(name, OTHER_POLICIES)),
        layouts=tuple(getattr(options, "layout", None) or ("predictive",)),
        config=family_retention(DEFAULTS, **kept),
        stream=getattr(options, "stream", None) or shape.stream,
        minutes=getattr(options, "minutes", 60),
        split=getattr(options, "split", False),
        peers=_names(getattr(options, "peer", None)),
        repeat=options.repeat,
        seed=options.seed,
        warm=getattr(options, "warm", False),
    )


def _packing(options: argparse.Namespace) -> Packing | None:
    bits, group_size = (getattr(options, key, None) for key in ("q_bits", "q_group_size"))
    if bits is None:
        if group_size is not None:
            raise ConfigError("[bench] --q-group-size is for --q-bits, which was not given")
        return None
    return Packing(bits) if group_size is None else Packing(bits, group_size)


def _names(given: str | None) -> tuple[str, ...]:
    if given is None:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",")))
    if "" in names:
        raise ConfigError(f"[bench] --peer must be names by commas, got {given!r}")
    return names


def _measured(name: str, backend: Backend, settings: Settings, screen: Console) -> Report:
    with screen.status("") as status:
        course = Course(tell=lambda text: status.update(printable(text)))
        course.tell("what the device can do")
        ceilings = backend.run(measure, backend)
        shape, rows = BENCHES[name](backend, settings, ceilings, course)
    packages = (package for peer in settings.peers for package in PEERS[peer])
    machine = Machine.of(backend, *packages)
    return Report(name, machine, ceilings, shape, settings, course.notes, rows)
