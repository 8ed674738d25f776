"""The table in docs/compatibility.md: which tests of Celery's suite do not pass where, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.celery_suite.checkout import FILES
from tests.celery_suite.lanes import LANES

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
ENDINGS = ("passes", "fails", "fails at times", "skipped")


@dataclass(frozen=True, slots=True)
class Row:
    """One test, how it ends on each lane, and why it does not pass."""

    test: str
    endings: dict[str, str]
    reason: str


def rows() -> list[Row]:
    """Read the table off the page."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [_row(line) for line in lines if line.startswith(tuple(f"| `{file}::" for file in FILES))]


def known_failures(lane: str, file: str) -> dict[str, str]:
    """Return the tests of *file* that the table says fail on *lane*, and how surely: `fails` or `fails at times`."""
    found = {row.test: row.endings[lane] for row in rows() if row.test.startswith(file)}
    return {test: ending for test, ending in found.items() if ending.startswith("fails")}


def _row(line: str) -> Row:
    test, *endings, reason = (cell.strip() for cell in line.strip("| ").split(" | "))
    names = [lane.name for lane in LANES]
    return Row(test.strip("`"), dict(zip(names, endings, strict=True)), reason)
