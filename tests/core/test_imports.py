"""The core is plain integers and NumPy: importing it brings in no backend and no media library."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("mlx", "mlx_lm", "cupy", "av", "torch", "transformers", "PIL")

CORE = (
    "cache",
    "config",
    "history",
    "layouts",
    "migration",
    "pages",
    "policies",
    "positions",
    "retention",
    "rotary",
    "step",
    "units",
)


@pytest.mark.parametrize("name", CORE)
def test_the_core_imports_nothing_heavy(name: str) -> None:
    code = (
        f"import sys, omnitide.{name}; "
        f"print([m for m in {HEAVY!r} if m in sys.modules], 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[] True"
