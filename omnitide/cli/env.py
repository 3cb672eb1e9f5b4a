"""`omnitide env`: versions, the machine, and of each backend whether it can be used."""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from omnitide.backends import BackendInfo, auto_backend, describe_backends
from omnitide.cli.console import PlainConsole
from omnitide.cli.report import bytes_in_words

PACKAGES = (
    "omnitide",
    "numpy",
    "mlx",
    "mlx-lm",
    "av",
    "safetensors",
    "tokenizers",
    "pillow",
    "huggingface-hub",
    "cupy",
    "cupy-cuda12x",
    "cupy-cuda13x",
)
"""Distributions whose versions matter in a report of a fault."""


def env(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    infos = describe_backends()
    auto = auto_backend().name
    facts = _facts(infos, auto)
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        _show(PlainConsole(stderr=False), facts, infos, auto)
    return 0


def _facts(infos: tuple[BackendInfo, ...], auto: str) -> dict[str, Any]:
    return {
        "versions": {"python": platform.python_version(), **_versions()},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "auto": auto,
        "backends": [asdict(info) for info in infos],
    }


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _memory_bytes() -> int | None:
    """Bytes of main memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _show(
    console: Console, facts: dict[str, Any], infos: tuple[BackendInfo, ...], auto: str
) -> None:
    memory = facts["memory_bytes"]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, number in facts["versions"].items():
        grid.add_row(name, Text(number or "not installed"))
    grid.add_row("platform", Text(facts["platform"]))
    grid.add_row("CPUs", Text(str(facts["cpu_count"])))
    grid.add_row("memory", Text("unknown" if memory is None else bytes_in_words(memory)))
    console.print(grid)
    for info in infos:
        console.print()
        state = "available" if info.available else "not available"
        taken = ", taken by auto" if info.name == auto else ""
        console.print(Text(f"{info.name}: {state}{taken}", style="bold"))
        if info.available:
            libraries = ", ".join(f"{name} {number}" for name, number in info.versions.items())
            console.print(f"  device  {info.device}", soft_wrap=not console.is_terminal)
            console.print(f"  with    {libraries}", soft_wrap=not console.is_terminal)
        dtypes = [f"{d} (default)" if d == info.default_dtype else d for d in info.dtypes]
        console.print(f"  dtypes  {', '.join(dtypes)}", soft_wrap=not console.is_terminal)
        if info.note:
            console.print(f"  note    {info.note}", soft_wrap=not console.is_terminal)
