"""The page on architecture names every table and its columns, as the migrations make them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PAGE = (ROOT / "docs/architecture.md").read_text()
_LISTED = re.compile(r"`(atomic_\w+)\(([\w, ]+)\)`")
_MADE = re.compile(r"CREATE (?:UNLOGGED )?TABLE (atomic_\w+) \((.*?)\n\)", re.S)
_ONLY_POSTGRESQL = {"atomic_watcher"}  # SQLite wakes nobody: whoever waits looks at the file
_COLUMN = re.compile(r"^ {4}([a-z]\w*) ", re.M)


def made(dialect: str) -> dict[str, set[str]]:
    text = "".join(file.read_text() for file in (ROOT / "atomic_celery/store/migrations" / dialect).glob("*.sql"))
    return {table: set(_COLUMN.findall(body)) for table, body in _MADE.findall(text)}


def listed(dialect: str) -> dict[str, set[str]]:
    absent = _ONLY_POSTGRESQL if dialect == "sqlite" else set()
    return {table: set(re.findall(r"\w+", columns)) for table, columns in _LISTED.findall(_PAGE) if table not in absent}


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
def test_the_page_lists_the_tables_and_columns_there_are(dialect: str) -> None:
    assert len(made(dialect)) > 20
    assert listed(dialect) == made(dialect)
