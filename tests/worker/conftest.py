"""A fleet on each kind of database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.workers import Fleet


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """An empty fleet, with short leases."""
    made = Fleet(database_url, tmp_path)
    yield made
    made.close()
