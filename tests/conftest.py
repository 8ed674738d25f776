"""Databases for every test: fresh, private, on SQLite and on a PostgreSQL that comes along."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.binaries import ServerNotFound, postgres_directory, unprivileged
from tests.support.pgbouncer import PgBouncer, PoolerNotFound
from tests.support.postgres import ExternalPostgres, Postgres, PostgresServer
from tests.support.proxy import Proxy
from tests.support.roles import Role

EXTERNAL_URL = "ATOMIC_TEST_POSTGRES_URL"

# The same examples in every run, however slow the machine; `pytest --hypothesis-profile=default` looks for new ones.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_report_header() -> str:
    """Say at the top of each run which PostgreSQL it is about."""
    if os.environ.get(EXTERNAL_URL):
        return f"PostgreSQL: {EXTERNAL_URL}"
    try:
        return f"PostgreSQL: {postgres_directory(unprivileged())}"
    except ServerNotFound as error:
        return str(error)


@pytest.fixture(autouse=True)
def _logging_as_found() -> Iterator[None]:
    """Put back how much is logged: a Celery worker in this process says so for all of it, and never takes it back."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture
def patient_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let who leads by a clock that stands still wait for an answer however long it takes in real time."""
    monkeypatch.setattr("atomic_celery.term._ANSWER_WITHIN_S", 60.0)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The server that the whole session shares; make databases on it, but never hurt it."""
    if url := os.environ.get(EXTERNAL_URL):
        yield ExternalPostgres(url)
        return
    with _own_server() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A started server of this test's own, to be frozen, killed and restarted."""
    with _own_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """An empty PostgreSQL database: `postgresql://…`."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    """The network between the database of `postgres_url` and those who go through it; it can be broken."""
    with Proxy.before(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def role(postgres: Postgres, postgres_url: str) -> Iterator[Role]:
    """A role of the test's own on that database."""
    role = Role(postgres, postgres_url)
    yield role
    role.drop()


@pytest.fixture
def pooler(own_postgres: PostgresServer) -> Iterator[PgBouncer]:
    """Start a PgBouncer in transaction mode before a server of this test's own (-m pooler)."""
    try:
        pgbouncer = PgBouncer(own_postgres)
    except PoolerNotFound as error:
        pytest.fail(str(error), pytrace=False)
    with pgbouncer:
        yield pgbouncer


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite database file that does not exist yet: `sqlite:///…`."""
    return f"sqlite:///{tmp_path / 'atomic.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind in turn, as SQLAlchemy names it."""
    fixture = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(fixture))


@pytest.fixture
def broker_url(database_url: str) -> str:
    """The same database as Celery's `broker_url` names it: `atomic+…`."""
    return f"atomic+{database_url}"


def _own_server() -> PostgresServer:
    try:
        return PostgresServer()
    except ServerNotFound as error:
        pytest.fail(str(error), pytrace=False)
