"""A migrated store for every test, on each database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atomic_celery.config import Settings
from atomic_celery.store.store import Store, open_store
from tests.store.desk import Desk


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """A store with tables and nothing in them, on SQLite and on PostgreSQL in turn."""
    yield from _migrated(database_url)


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[Store]:
    """The same, on PostgreSQL only."""
    yield from _migrated(postgres_url)


@pytest.fixture
def sqlite_store(sqlite_url: str) -> Iterator[Store]:
    """The same, on SQLite only."""
    yield from _migrated(sqlite_url)


@pytest.fixture
def desk(store: Store) -> Desk:
    """A queue and a clock, on each database in turn."""
    return Desk(store)


@pytest.fixture
def postgres_desk(postgres_store: Store) -> Desk:
    """The same, on PostgreSQL only."""
    return Desk(postgres_store)


def _migrated(url: str) -> Iterator[Store]:
    store = open_store(url, Settings())
    store.schema.migrate()
    yield store
    store.close()
