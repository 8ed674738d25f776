"""The README's two commands are the ones that CI runs, and its links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.style.sources import ROOT

LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#]+)(?:#[^)]*)?\)")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_ci_runs_the_commands_of_the_readme() -> None:
    commands = re.findall(r"^python3 -m venv .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    script = [line.strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]

    assert len(commands) == 2, "one to run, one to test"
    assert [command for command in commands if command not in script] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    assert list(_dead_links(page)) == []


def _dead_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(page.read_text()):
        if not (page.parent / target).exists():
            yield target
