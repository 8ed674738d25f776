"""P7 once more, with the application and the broker behind PgBouncer in transaction mode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy

from atomic_celery.config import Settings
from atomic_celery.store import open_store
from tests.publishing.conftest import Office
from tests.publishing.tasks import make_app
from tests.publishing.test_joining import *  # noqa: F403
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.pooler

PREPARES_NOTHING = {"psycopg2": {}, "psycopg": {"prepare_threshold": None}}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server with a pooler in front."""
    with PostgresServer() as started:
        yield started


@pytest.fixture(scope="module")
def pooler(server: PostgresServer) -> Iterator[PgBouncer]:
    """The pooler."""
    with PgBouncer(server) as started:
        yield started


@pytest.fixture
def direct_url(server: PostgresServer) -> str:
    """A database, not through the pooler."""
    return server.create_database()


@pytest.fixture(params=["psycopg2", "psycopg"])
def engine(request: pytest.FixtureRequest, pooler: PgBouncer, direct_url: str) -> Iterator[sqlalchemy.Engine]:
    """The application's engine, through the pooler."""
    url = pooler.url(direct_url).replace("postgresql://", f"postgresql+{request.param}://")
    engine = sqlalchemy.create_engine(url, connect_args=PREPARES_NOTHING[request.param])
    yield engine
    engine.dispose()


@pytest.fixture
def joined(pooler: PgBouncer, direct_url: str) -> Iterator[Office]:
    """The app that publishes through the pooler, and a look at its database past it."""
    store = open_store(direct_url, Settings())
    store.schema.migrate()
    with make_app(f"atomic+{pooler.url(direct_url)}", atomic_notify=False) as app:
        yield Office(app, store)
    store.close()
