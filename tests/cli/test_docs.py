"""The worked examples of docs/retention.md: what the page shows is what comes out."""

from __future__ import annotations

import doctest
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "retention.md"
TEXT = PAGE.read_text(encoding="utf-8")
SHOWN = re.findall(r"^```console\n\$ omnitide (.+?)\n(.*?)^```$", TEXT, re.M | re.S)
NAMED = re.findall(r"^omnitide (simulate .+)$", TEXT, re.M)


def without_times(text: str) -> list[str]:
    """The lines, but for measured times."""
    return [line.rstrip() for line in text.splitlines() if not line.startswith("planning")]


def test_the_python_examples_give_what_they_show() -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S))
    test = doctest.DocTestParser().get_doctest(code, {}, PAGE.name, str(PAGE), 0)
    report: list[str] = []
    result = doctest.DocTestRunner().run(test, out=report.append)
    assert result.attempted > 10
    assert result.failed == 0, "".join(report)


@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_the_tables_are_those_of_their_commands(
    command: str, shown: str, call: Callable[..., Any]
) -> None:
    done = call(*shlex.split(command))
    assert done.code == 0
    assert without_times(done.out) == without_times(shown)


@pytest.mark.parametrize("command", [c for c in NAMED if "--plot" in c])
def test_the_pictures_are_drawn_by_their_commands(
    command: str, call: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*shlex.split(command)).code == 0
    (drawn,) = tmp_path.glob("*.png")
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert (PAGE.parent / drawn.name).is_file()


def test_the_page_holds_examples_of_each_kind() -> None:
    assert len(SHOWN) >= 2
    assert [c for c in NAMED if "--plot" in c]
    for name in re.findall(r"!\[.+?\]\((.+?)\)", TEXT):
        assert (PAGE.parent / name).is_file()
