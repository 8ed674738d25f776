"""A doorbell rings for its own process at once, for the database soon, and rather once too often."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from atomic_celery.config import Settings
from atomic_celery.store.doorbell import Doorbell, channel
from atomic_celery.store.queues import Queue, QueueSpec
from atomic_celery.store.records import NewMessage
from atomic_celery.store.store import Store, open_store
from tests.support.postgres import Postgres, PostgresServer
from tests.support.waiting import wait_until

LONG_S = 60.0
"""Nothing here ever waits this long: something rings."""
QUIET_S = 0.2


@pytest.fixture(params=["sqlite", "psycopg2", "psycopg"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store on SQLite and on PostgreSQL through each driver."""
    kind = "sqlite" if request.param == "sqlite" else "postgres"
    url = request.getfixturevalue(f"{kind}_url")
    yield from _migrated(url.replace("postgresql:", f"postgresql+{request.param}:"), Settings())


@pytest.fixture(params=["psycopg2", "psycopg"])
def postgres_store(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Store]:
    """A store on PostgreSQL through each driver."""
    url = postgres_url.replace("postgresql:", f"postgresql+{request.param}:")
    yield from _migrated(url, Settings())


@pytest.fixture
def deaf_store(postgres_url: str) -> Iterator[Store]:
    """A store that may not keep sessions."""
    yield from _migrated(postgres_url, Settings(notify=False))


def _migrated(url: str, settings: Settings) -> Iterator[Store]:
    store = open_store(url, settings)
    store.schema.migrate()
    yield store
    store.close()


@pytest.fixture
def bell(store: Store) -> Iterator[Doorbell]:
    """A doorbell that listens and has nothing left to say."""
    bell = store.doorbell("holder")
    listen(bell)
    yield bell
    bell.close()


def listen(bell: Doorbell) -> None:
    """Wait until *bell* listens and is quiet."""
    wait_until(lambda: not bell.wait(QUIET_S) and bell.listening, describe="it does not listen")


def queue_of(store: Store) -> Queue:
    return store.queues.declare(QueueSpec(name="q"))


def publish(store: Store, queue: Queue, count: int = 1) -> None:
    store.messages.publish([NewMessage(queue_id=queue.id, payload="{}")] * count)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def test_a_bell_wakes_once_when_it_begins_to_listen(store: Store) -> None:
    bell = store.doorbell("holder")
    assert not bell.listening
    assert bell.wait(LONG_S)
    assert bell.listening
    assert not bell.wait(QUIET_S)
    bell.close()


def test_a_ring_from_another_thread_ends_the_wait(bell: Doorbell, threads: ThreadPoolExecutor) -> None:
    waiting = threads.submit(bell.wait, LONG_S)
    bell.ring()
    assert waiting.result() is True


def test_rings_before_the_wait_are_one_ring(bell: Doorbell) -> None:
    for _ in range(100_000):
        bell.ring()
    assert bell.wait(LONG_S)
    assert not bell.wait(QUIET_S)


def test_a_signal_handler_may_ring(bell: Doorbell) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: bell.ring())
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        assert bell.wait(LONG_S)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_bell_that_rests_is_rung_from_inside_only(store: Store, bell: Doorbell, threads: ThreadPoolExecutor) -> None:
    queue = queue_of(store)
    store.queues.arm("holder", [queue.id], 60_000)
    publish(store, queue)
    assert not bell.rest(QUIET_S)
    resting = threads.submit(bell.rest, LONG_S)
    bell.ring()
    assert resting.result() is True
    assert bell.listening


def test_a_bell_that_rests_does_not_dial_again(
    postgres_store: Store, postgres: Postgres, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    bell = postgres_store.doorbell("holder")
    listen(bell)
    resting = threads.submit(bell.rest, LONG_S)
    cut_off_everybody(postgres, postgres_store)
    assert resting.result() is False
    assert not bell.listening
    assert caplog.messages == []
    bell.close()


def test_a_closed_bell_ends_waits(bell: Doorbell, threads: ThreadPoolExecutor) -> None:
    waiting = threads.submit(bell.wait, LONG_S)
    bell.close()
    assert waiting.result() is True
    bell.ring()
    bell.close()
    assert bell.wait(LONG_S)


def test_what_is_published_wakes_who_sleeps_for_it(store: Store, bell: Doorbell, threads: ThreadPoolExecutor) -> None:
    queue = queue_of(store)
    listen(bell)
    store.queues.arm("holder", [queue.id], 60_000)
    waiting = threads.submit(bell.wait, LONG_S)
    publish(store, queue)
    assert waiting.result() is True


def test_what_came_while_nobody_waited_is_heard(store: Store, bell: Doorbell) -> None:
    queue = queue_of(store)
    store.queues.arm("holder", [queue.id], 60_000)
    listen(bell)
    publish(store, queue)
    assert bell.wait(LONG_S)
    assert not bell.wait(QUIET_S)


def test_a_bell_works_where_select_would_not(store: Store) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    files = [socket.socket() for _ in range(1100)]
    try:
        bell = store.doorbell("holder")
        listen(bell)
        bell.ring()
        assert bell.wait(LONG_S)
        bell.close()
    finally:
        for file in files:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_one_message_wakes_one_sleeper(postgres_store: Store, threads: ThreadPoolExecutor) -> None:
    store = postgres_store
    queue = queue_of(store)
    bells = {f"holder {number}": store.doorbell(f"holder {number}") for number in range(3)}
    for name, bell in bells.items():
        listen(bell)
        store.queues.arm(name, [queue.id], 60_000)
    waiting = [threads.submit(bell.wait, LONG_S) for bell in bells.values()]
    for woken in (1, 2, 3):
        publish(store, queue)
        wait_until(lambda woken=woken: count_done(waiting) == woken)  # type: ignore[misc]
    publish(store, queue)
    for bell in bells.values():
        assert not bell.wait(QUIET_S)
        bell.close()


def count_done(futures: list[Future[bool]]) -> int:
    return sum(future.done() for future in futures)


def test_nobody_is_woken_by_an_undone_publication(postgres_store: Store) -> None:
    queue = queue_of(postgres_store)
    bell = postgres_store.doorbell("holder")
    listen(bell)
    postgres_store.queues.arm("holder", [queue.id], 60_000)
    transaction = postgres_store.transaction()
    transaction.__enter__()
    publish(postgres_store, queue)
    transaction.__exit__(RuntimeError, RuntimeError(), None)
    assert not bell.wait(QUIET_S)
    assert postgres_store.queues.ring([queue.id]) == 1
    assert bell.wait(LONG_S)
    bell.close()


def test_a_bell_that_lost_its_line_looks_now_and_then_and_listens_again(
    postgres_store: Store, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    store = postgres_store
    queue = queue_of(store)
    bell = store.doorbell("holder")
    listen(bell)

    cut_off_everybody(postgres, store)
    wait_until(lambda: bell.wait(0.01) is not None and not bell.listening, describe="still listening")
    assert bell.wait(LONG_S)
    wait_until(lambda: bell.wait(LONG_S) and bell.listening, describe="deaf for ever")
    assert "cannot listen for messages" in caplog.text
    assert "listening again in 1 s" in caplog.text

    listen(bell)
    store.queues.arm("holder", [queue.id], 60_000)
    publish(store, queue)
    assert bell.wait(LONG_S)
    bell.close()


def cut_off_everybody(postgres: Postgres, store: Store) -> None:
    name = dict(store.url.parameters)["dbname"]
    postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")


def test_a_bell_survives_a_restart_of_the_server(own_postgres: PostgresServer) -> None:
    [store] = [next(opened := _migrated(own_postgres.create_database(), Settings()))]
    bell = store.doorbell("holder")
    listen(bell)
    own_postgres.kill()
    wait_until(lambda: bell.wait(LONG_S) and not bell.listening, describe="still listening")
    own_postgres.start()
    wait_until(lambda: bell.wait(LONG_S) and bell.listening, describe="deaf for ever")
    bell.close()
    opened.close()


def test_a_server_that_does_not_answer_keeps_nobody_from_being_rung(
    own_postgres: PostgresServer, threads: ThreadPoolExecutor
) -> None:
    opened = _migrated(own_postgres.create_database(), Settings(connect_timeout_s=LONG_S))
    store = next(opened)
    store.close()
    own_postgres.kill(signal.SIGSTOP)
    bell = store.doorbell("holder")
    waiting = threads.submit(bell.wait, 0.5)
    bell.ring()
    assert waiting.result() is True
    assert bell.wait(LONG_S)  # a look now and then, as without a line
    assert not bell.listening
    own_postgres.kill(signal.SIGCONT)
    wait_until(lambda: bell.wait(LONG_S) and bell.listening, describe="deaf for ever")
    bell.close()
    opened.close()


def test_without_sessions_of_its_own_a_bell_opens_none_and_looks_now_and_then(
    deaf_store: Store, postgres: Postgres
) -> None:
    deaf_store.close()
    bell = deaf_store.doorbell("holder")
    assert bell.wait(LONG_S)
    assert bell.wait(LONG_S)
    assert not bell.listening
    assert not bell.wait(QUIET_S)
    name = dict(deaf_store.url.parameters)["dbname"]
    assert postgres.execute(f"SELECT pid FROM pg_stat_activity WHERE datname = '{name}'") == []
    queue = queue_of(deaf_store)
    deaf_store.queues.arm("holder", [queue.id], 60_000)
    assert deaf_store.queues.ring([queue.id]) == 0
    bell.ring()
    assert bell.wait(LONG_S)
    bell.close()


@pytest.mark.parametrize("holder", ["", "host-1/pool-1", "ü" * 100])
def test_sql_and_python_agree_on_the_name_of_a_channel(postgres: Postgres, holder: str) -> None:
    prefix = "p" * 24
    expression = f"'{prefix}_' || left(encode(sha256(convert_to('{holder}', 'UTF8')), 'hex'), 32)"
    assert postgres.execute(f"SELECT {expression}") == [(channel(prefix, holder),)]
    assert len(channel(prefix, holder).encode()) <= 63


DECLARE = """
import sys
from atomic_celery.config import Settings
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.store import open_store
open_store(sys.argv[1], Settings()).queues.declare(QueueSpec(name="q"))
"""


def test_a_sqlite_bell_hears_another_program(sqlite_store: Store, threads: ThreadPoolExecutor) -> None:
    bell = sqlite_store.doorbell("holder")
    listen(bell)
    waiting = threads.submit(bell.wait, LONG_S)
    subprocess.run([sys.executable, "-c", DECLARE, str(sqlite_store.url)], check=True)
    assert waiting.result() is True
    assert not bell.wait(QUIET_S)
    bell.close()


def test_a_sqlite_bell_waits_for_its_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "later"
    store = open_store(f"sqlite:///{directory}/atomic.db", Settings())
    bell = store.doorbell("holder")
    assert bell.wait(LONG_S)  # a look now and then, as without a line
    assert not bell.listening
    assert "looking every 1 s, listening again in 1 s" in caplog.messages[0]
    directory.mkdir()
    wait_until(lambda: bell.wait(LONG_S) and bell.listening, describe="deaf for ever")
    bell.close()
    store.close()
