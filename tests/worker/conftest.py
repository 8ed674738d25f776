"""A fleet on each kind of database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.workers import Fleet


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """An empty fleet."""
    with closing(Fleet(database_url, tmp_path)) as made:
        yield made


@pytest.fixture
def slow_fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """The same with leases as long as in life, so that a test that waits for one to run out fails."""
    with closing(Fleet(database_url, tmp_path, quick=False)) as made:
        yield made


@pytest.fixture
def fleet_with_results(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """The same, where results are stored."""
    with closing(Fleet(database_url, tmp_path, results=True)) as made:
        yield made
