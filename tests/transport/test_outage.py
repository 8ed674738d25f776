"""The database goes and comes back; who publishes and who consumes goes on."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import kombu
import pytest

from atomic_celery import errors
from atomic_celery.config import Settings
from atomic_celery.store import open_store
from tests.support.daemons import free_port
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until
from tests.transport.conftest import Connect
from tests.transport.inbox import consuming, publish

QUEUE = kombu.Queue("durable", routing_key="durable")


@pytest.fixture
def own_url(own_postgres: PostgresServer) -> str:
    url = own_postgres.create_database()
    store = open_store(url, Settings())
    store.schema.migrate()
    store.close()
    return f"atomic+{url}"


def test_a_connection_survives_a_restart_of_the_server(own_postgres: PostgresServer, own_url: str) -> None:
    with kombu.Connection(own_url) as connection:
        publish(connection, QUEUE, "before")
        own_postgres.restart()
        publish(connection, QUEUE, "after", retry=True)
        with consuming(connection, QUEUE) as inbox:
            assert inbox.wait(2) == ["before", "after"]


def test_a_sleeping_consumer_hears_what_comes_after_a_restart(own_postgres: PostgresServer, own_url: str) -> None:
    with (
        kombu.Connection(own_url) as connection,
        kombu.Connection(own_url) as other,
        consuming(connection, QUEUE, no_ack=True) as inbox,
    ):
        inbox.drain_for(0.5)
        own_postgres.restart()
        publish(other, QUEUE, "after", retry=True)

        def received() -> bool:
            with contextlib.suppress(*connection.connection_errors):
                inbox.drain_for(1)
            return bool(inbox.messages)

        wait_until(received, 60)


def test_a_claim_is_settled_after_a_restart(own_postgres: PostgresServer, own_url: str) -> None:
    with kombu.Connection(own_url) as connection:
        publish(connection, QUEUE, "held")
        message = QUEUE(connection.default_channel).get()
        own_postgres.stop()
        message.ack()
        own_postgres.start()
        store = open_store(own_url, Settings())
        with consuming(connection, QUEUE) as inbox:

            def settled() -> bool:
                with contextlib.suppress(*connection.connection_errors):
                    inbox.drain()
                return store.reads.messages() == []

            wait_until(settled, 60)
        assert inbox.messages == []
        store.close()


def test_a_database_that_is_away_is_a_connection_error_of_kombus(own_postgres: PostgresServer, own_url: str) -> None:
    with kombu.Connection(own_url) as connection, consuming(connection, QUEUE) as inbox:
        own_postgres.stop()
        with pytest.raises(connection.connection_errors) as refused:
            inbox.connection.drain_events(timeout=60)
        assert isinstance(refused.value, errors.StoreUnavailable)
        own_postgres.start()


def test_a_busy_database_is_not_taken_for_a_lost_connection(connect: Connect) -> None:
    connection = connect()
    assert not issubclass(errors.StoreBusy, connection.recoverable_connection_errors)
    assert issubclass(errors.StoreBusy, connection.recoverable_channel_errors)


def test_of_several_urls_the_first_that_answers_is_used(url: str) -> None:
    nowhere = f"atomic+postgresql://127.0.0.1:{free_port()}/nowhere"
    with kombu.Connection(f"{nowhere};{url}") as connection:
        publish(connection, QUEUE, "found", retry=True, retry_policy={"max_retries": 3, "interval_start": 0})
        assert QUEUE(connection.default_channel).get().decode() == "found"


def test_missing_tables_are_said_with_the_command_that_makes_them(postgres_url: str) -> None:
    connection = kombu.Connection(f"atomic+{postgres_url}")
    with connection, pytest.raises(errors.SchemaMismatch, match="atomic migrate"):
        connection.connect()


def test_the_embedded_database_makes_itself(tmp_path: Path) -> None:
    with kombu.Connection(f"atomic+sqlite:///{tmp_path}/new.db") as connection:
        publish(connection, QUEUE, "first")
        assert QUEUE(connection.default_channel).get().decode() == "first"
        with pytest.raises(socket.timeout), consuming(connection, QUEUE):
            connection.drain_events(timeout=0)
