"""The core is plain integers and NumPy: importing it brings in no backend and no media library."""

from __future__ import annotations

import subprocess
import sys

BACKENDS = ("mlx", "mlx_lm", "cupy", "torch", "transformers")
MEDIA = ("av", "PIL")

CORE = (
    "backend",
    "cache",
    "capacity",
    "config",
    "history",
    "layouts",
    "migration",
    "model",
    "pages",
    "paging",
    "policies",
    "positions",
    "retention",
    "rotary",
    "step",
    "units",
)


def test_the_package_and_its_core_import_no_backend_and_no_media_library() -> None:
    imports = "; ".join(f"import omnitide.{name}" for name in CORE)
    names = ("numpy", *BACKENDS, *MEDIA)
    code = f"import sys, omnitide; {imports}; print(*[m for m in {names!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["numpy"]
