"""Scenes on each kind of database, and behind a network that can be broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.scene import Scene, scenes
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy


@pytest.fixture
def scene(database_url: str, tmp_path: Path) -> Iterator[Scene]:
    """A scene on SQLite and on PostgreSQL in turn."""
    yield from scenes(database_url, tmp_path)


@pytest.fixture
def postgres_scene(postgres_url: str, tmp_path: Path) -> Iterator[Scene]:
    """A scene on PostgreSQL only."""
    yield from scenes(postgres_url, tmp_path)


@pytest.fixture
def sqlite_scene(sqlite_url: str, tmp_path: Path) -> Iterator[Scene]:
    """A scene on SQLite only."""
    yield from scenes(sqlite_url, tmp_path)


@pytest.fixture
def distant_scene(postgres_url: str, tmp_path: Path, proxy: Proxy) -> Iterator[Scene]:
    """A scene whose workers are behind `proxy`."""
    yield from scenes(postgres_url, tmp_path, broker=proxy.url(postgres_url))


@pytest.fixture
def fragile_scene(own_postgres: PostgresServer, tmp_path: Path) -> Iterator[Scene]:
    """A scene on a server that may be hurt: `own_postgres`."""
    yield from scenes(own_postgres.create_database(), tmp_path)
