"""What errors of libraries and of the system are told as."""

from __future__ import annotations

import errno
import os

import pytest

from omnitide.errors import first_line_of, reason_of

CASES = [
    (RuntimeError(""), "RuntimeError"),
    (RuntimeError(" \n"), "RuntimeError"),
    (ValueError(" no memory\nat line 3"), "no memory"),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a/path"), os.strerror(errno.ENOSPC)),
]


@pytest.mark.parametrize(("error", "line"), CASES)
def test_the_first_line_says_why_and_no_path(error: Exception, line: str) -> None:
    assert first_line_of(error) == line


def test_a_reason_is_told_whole() -> None:
    assert reason_of(ValueError("no memory\nat line 3")) == "no memory\nat line 3"
