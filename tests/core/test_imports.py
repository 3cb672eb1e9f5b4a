"""The core is plain integers and NumPy: importing it brings in no backend and no media library."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

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
    "policies",
    "positions",
    "retention",
    "rotary",
    "step",
    "units",
)


def loaded(before: str, names: tuple[str, ...]) -> list[str]:
    """Which of `names` a fresh interpreter has loaded after `before` and all core modules."""
    imports = "; ".join(f"import omnitide.{name}" for name in CORE)
    code = f"{before}; {imports}; print(*[m for m in {('numpy', *names)!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_package_imports_no_backend() -> None:
    assert loaded("import sys, omnitide", BACKENDS) == ["numpy"]


def test_the_core_alone_imports_no_media_library() -> None:
    """The package's front door, which leads to the media reader too, is replaced by a bare one."""
    spec = importlib.util.find_spec("omnitide")
    assert spec is not None
    assert spec.origin is not None
    folder = str(Path(spec.origin).parent)
    bare = (
        "import sys, types; package = types.ModuleType('omnitide'); "
        f"package.__path__ = [{folder!r}]; sys.modules['omnitide'] = package"
    )
    assert loaded(bare, (*BACKENDS, *MEDIA)) == ["numpy"]
