"""Behind PgBouncer in transaction mode everything works that does not need a session of its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from atomic_celery.config import Settings
from atomic_celery.errors import StoreError, StoreUnavailable
from atomic_celery.store.hosts import HostReport
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import Holder, Lane, NewMessage
from atomic_celery.store.store import Store, open_store
from tests.support.hosts import new_host
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.pooler

HOST = new_host("host", "boot", provider_id="i-1", queues=("q",))
HOLDER = Holder("host", "boot", is_host=True)


@pytest.fixture(params=["psycopg2", "psycopg"])
def url(request: pytest.FixtureRequest, own_postgres: PostgresServer) -> Iterator[str]:
    """A database behind a pooler that has one session for everybody."""
    with PgBouncer(own_postgres, pool_size=1) as pooler:
        url = pooler.url(own_postgres.create_database())
        yield url.replace("postgresql:", f"postgresql+{request.param}:")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url, Settings(notify=False))
    store.schema.migrate()
    yield store
    store.close()


def test_messages_and_hosts_live_as_ever(store: Store) -> None:
    queue = store.queues.declare(QueueSpec(name="q", expires_ms=60_000))
    store.hosts.register(HOST)

    def live(number: int) -> int:
        store.messages.publish([NewMessage(queue_id=queue.id, payload="{}", task_id=str(number))])
        [message] = store.messages.claim(HOLDER, [Lane(queue.id, 0)], 1, 30_000)
        assert store.messages.renew(HOLDER, [message.held], 30_000).renewed == {message.id}
        store.hosts.report("host", "boot", HostReport(slots=2, busy=1, queues=("q",)))
        assert store.messages.complete([message.held]) == {message.id}
        return message.id

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(live, range(80)))) == 80
    assert store.hosts.drain_if_idle("host", "scale down", "controller") is True
    store.messages.publish([NewMessage(queue_id=queue.id, payload="{}")])
    assert store.messages.claim(HOLDER, [Lane(queue.id, 0)], 1, 30_000) == []
    store.events.record("drain-asked", instance="i-1")
    store.revocations.add(["t"], 60_000)
    assert store.revocations.contains(["t"]) == {"t"}
    assert store.queues.delete("q") == 1


def test_nothing_of_ours_stays_behind_in_a_session(store: Store, own_postgres: PostgresServer) -> None:
    queue = store.queues.declare(QueueSpec(name="q"))
    store.queues.delete("q")
    bell = store.doorbell("holder")
    assert bell.wait(60)
    assert not bell.listening
    bell.close()
    assert store.queues.ring([queue.id]) == 0
    with store._database.own_connection() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT count(*) FROM pg_prepared_statements),"
            " (SELECT count(*) FROM pg_listening_channels()),"
            " (SELECT count(*) FROM pg_settings WHERE source = 'session' AND name LIKE '%timeout')"
        )
        assert tuple(cursor.fetchone()) == (0, 0, 0)


def test_a_frozen_holder_keeps_the_pooler_s_session_no_longer_than_a_third_of_a_lease(store: Store, url: str) -> None:
    """The pooler has one session, and whoever stands still in a transaction has it."""
    quick = Settings(notify=False, lease_s=4.5, renew_every_s=1, lease_margin_s=1, statement_timeout_s=2)
    with closing(open_store(url, quick)) as frozen, pytest.raises(StoreUnavailable), frozen.transaction():  # noqa: PT012
        frozen.queues.declare(QueueSpec(name="mine"))
        assert store.queues.get("mine") is None  # waits for the session, and sees nothing of it
        frozen.queues.declare(QueueSpec(name="late"))


def test_a_forgotten_setting_is_told(store: Store, url: str) -> None:
    queue = store.queues.declare(QueueSpec(name="q"))
    hopeful = open_store(url, Settings())

    def publish_from_two_connections() -> None:
        with ThreadPoolExecutor(4) as threads:
            message = NewMessage(queue_id=queue.id, payload="{}")
            list(threads.map(lambda _: hopeful.messages.publish([message]), range(40)))

    with pytest.raises(StoreError, match="in transaction mode set atomic_notify = False"):
        publish_from_two_connections()
    hopeful.close()


def test_a_parameter_that_the_pooler_does_not_know_is_named(url: str) -> None:
    with (
        closing(open_store(f"{url}?options=-c%20statement_timeout%3D1000", Settings(notify=False))) as store,
        pytest.raises(StoreUnavailable, match="unsupported startup parameter: options"),
    ):
        store.schema.version()
