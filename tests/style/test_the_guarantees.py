"""A page names the test that shows what it says, and that test exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def named(text: str) -> list[tuple[str, str]]:
    """List the tests a page names: file and function; a file alone has no function."""
    return [(file, function) for file, function in _NAMED.findall(text)]


def missing(file: str, function: str) -> bool:
    """Whether there is no such test."""
    path = ROOT / file
    return not path.exists() or (bool(function) and f"def {function}(" not in path.read_text())


PAGES = [path.read_text() for path in (ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize(("file", "function"), sorted({each for page in PAGES for each in named(page)}))
def test_a_page_names_a_test_that_exists(file: str, function: str) -> None:
    assert not missing(file, function)


def test_a_name_that_leads_nowhere_is_noticed() -> None:
    [(file, function)] = named("`tests/style/test_the_guarantees.py::test_of_nothing`")
    assert missing(file, function)
    assert missing("tests/style/nowhere.py", "")
