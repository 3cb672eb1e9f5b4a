"""The paper count of the Metal shaders: what docs/performance.md shows is what comes out."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_tables_that_are_computed(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "benchmarks" / "metal_count.py"), run_name="__main__")
    tables = capsys.readouterr().out.strip().split("\n\n")
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert len(tables) == 5
    for table in tables:
        assert table in page
