"""Fleets whose tasks have limits, and apps that publish them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import kombu.pools
import pytest
from celery import Celery

from tests.support.workers import Fleet

APPLICATION = "tests.limits.application"


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """An empty fleet on each kind of database, with results."""
    yield from open_fleet(database_url, tmp_path)


@pytest.fixture
def postgres_fleet(postgres_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """The same on PostgreSQL only."""
    yield from open_fleet(postgres_url, tmp_path)


def open_fleet(url: str, directory: Path) -> Iterator[Fleet]:
    """Yield a fleet whose own app has the tasks' limits, as a publisher's has that shares their code."""
    with closing(Fleet(url, directory, results=True, application=APPLICATION)) as fleet:
        declare(fleet.app)
        yield fleet
        kombu.pools.reset()


def declare(app: Celery) -> None:
    """Make the tasks of the application known to a publisher's *app*; nobody runs them there."""
    for name, options in LIMITS.items():
        app.task(_nothing, name=f"{APPLICATION}.{name}", shared=False, typing=False, **options)


LIMITS = {
    "two_at_once": {"atomic_max_running": 2},
    "two_that_wait": {"atomic_max_running": 2},
    "one_a_tenant": {"atomic_max_running": 1, "atomic_key": "tenant-{args[0]}"},
    "five_a_second": {"atomic_rate_limit": "5/s"},
    "once": {"atomic_unique": "unfinished", "atomic_key": "{args[0]}"},
    "once_queued": {"atomic_unique": "queued", "atomic_key": "{args[0]}"},
    "once_retrying": {"atomic_unique": "unfinished"},
}


def _nothing(*_: object) -> None:
    """Never run."""
