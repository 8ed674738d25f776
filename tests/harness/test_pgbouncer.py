"""The pooler lane's PgBouncer really is one in transaction mode."""

from __future__ import annotations

import psycopg2
import pytest

from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.pooler


def test_two_clients_share_one_server_connection(own_postgres: PostgresServer) -> None:
    with PgBouncer(own_postgres, pool_size=1) as pooler:
        url = pooler.url(own_postgres.create_database())
        first, second = psycopg2.connect(url), psycopg2.connect(url)

        assert _backend(first) == _backend(second)

        first.close()
        second.close()


def _backend(connection: psycopg2.extensions.connection) -> int:
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [pid] = cursor.fetchone() or ()
        return int(pid)
