"""The core is plain integers and NumPy: importing it brings in no backend and no media library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import omnitide

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


@pytest.mark.parametrize("name", omnitide.__all__)
def test_every_public_name_is_there_and_no_module_hides_it(name: str) -> None:
    assert getattr(omnitide, name) is not None
    assert name in dir(omnitide)
    for folder in map(Path, omnitide.__path__):
        assert not (folder / name).exists()
        assert not (folder / f"{name}.py").exists()


def test_what_is_not_there_is_said_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'omnitide' has no attribute 'nothing'"):
        _ = omnitide.nothing


@pytest.mark.parametrize("name", sorted(omnitide._MODULES))
def test_modules_of_public_names_are_there_without_an_import_of_their_own(name: str) -> None:
    """Type checkers see them, as `__init__` imports from them for these."""
    code = f"import omnitide; print(omnitide.{name}.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [f"omnitide.{name}"], done.stderr


def test_the_command_line_can_be_imported_without_what_takes_long() -> None:
    """Its `main` has to be running before Ctrl-C can be met."""
    code = (
        "import sys, omnitide.cli; "
        "print(*[m for m in ('numpy', 'rich', 'omnitide.session') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
