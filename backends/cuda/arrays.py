"""CuPy under the name `cp`, or None where it isn't installed.

So that every module of this backend can be imported, and its list of kernel instances read, on a
machine without CUDA. Whoever loads the backend has made sure that CuPy is there.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def _cupy() -> Any:
    try:
        return import_module("cupy")
    except ImportError:
        return None


cp = _cupy()
