"""Transactions, deadlines, lost connections and forks: what every verb stands on."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from atomic_celery import errors
from atomic_celery.config import Settings
from atomic_celery.store import migrations
from atomic_celery.store.migrations import Migration
from atomic_celery.store.schema import Schema
from atomic_celery.store.store import Store, open_store
from tests.store.desk import Desk
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until


@pytest.fixture(params=["psycopg2", "psycopg"])
def remote(request: pytest.FixtureRequest, proxy: Proxy, postgres_url: str) -> Iterator[Store]:
    """A store behind that network, by either driver."""
    url = proxy.url(postgres_url).replace("postgresql", f"postgresql+{request.param}")
    store = open_store(url, Settings(connect_timeout_s=5))
    store.schema.migrate()
    yield store
    store.close()


def test_verbs_in_a_transaction_are_one(desk: Desk) -> None:
    with desk.store.transaction():
        first = desk.publish()
        with desk.store.transaction():
            second = desk.publish()
    assert [message.id for message in desk.claim()] == [first, second]
    with desk.undone():
        with desk.store.transaction():
            desk.publish()
        desk.publish()
    assert desk.claim() == []


def test_a_transaction_is_its_threads_own(desk: Desk) -> None:
    published = threading.Event()
    seen: list[int] = []

    def look() -> None:
        published.wait(timeout=60)
        seen.append(len(desk.store.reads.messages()))

    reader = threading.Thread(target=look)
    reader.start()
    with desk.store.transaction():
        desk.publish()
        published.set()
        reader.join(timeout=60)
    assert seen == [0]


def test_a_connection_is_good_again_after_an_error_in_a_transaction(desk: Desk) -> None:
    def fail() -> None:
        with desk.store.transaction():
            desk.publish()
            desk.store.reads._exec("write_probe_of_nothing")

    with pytest.raises(KeyError):
        fail()
    assert desk.claim() == []
    assert desk.publish()


def test_missing_tables_are_named_with_the_command_that_makes_them(database_url: str) -> None:
    store = open_store(database_url, Settings())
    with pytest.raises(errors.SchemaMismatch, match=r"atomic_queue.*celery -A .* atomic migrate"):
        store.queues.get("celery")
    store.close()


def test_a_hung_server_holds_nobody_longer_than_asked(remote: Store, proxy: Proxy) -> None:
    remote.now_ms()
    proxy.pause()
    with pytest.raises(errors.StoreUnavailable, match=r"within 0\.2 s"), remote.deadline(0.2):
        remote.now_ms()
    proxy.restore()
    assert remote.now_ms()


def test_without_a_deadline_an_answer_is_not_waited_for_much_longer_than_the_server_may_take(
    proxy: Proxy, postgres_url: str
) -> None:
    store = open_store(proxy.url(postgres_url), Settings(statement_timeout_s=1, connect_timeout_s=2))
    store.now_ms()
    proxy.pause()
    with pytest.raises(errors.StoreUnavailable, match=r"within 3 s"):
        store.now_ms()
    proxy.restore()
    assert store.now_ms()
    store.close()


def test_a_migration_takes_as_long_as_it_takes(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(postgres_url, Settings(statement_timeout_s=0.5))
    slow = Migration(
        1, "slow", True, "CREATE TABLE atomic_setting (name text PRIMARY KEY, value text); SELECT pg_sleep(1)"
    )
    monkeypatch.setattr(migrations, "load", lambda _: [slow])
    assert Schema(store._database).migrate() == ["slow"]
    with pytest.raises(errors.StoreBusy, match="statement timeout"):
        store._database.run(store._database.statements.script("x", "SELECT pg_sleep(1)"))
    store.close()


def test_a_deadline_bounds_connecting_too(remote: Store, proxy: Proxy) -> None:
    remote.close()
    proxy.pause()
    with pytest.raises(errors.StoreUnavailable), remote.deadline(2.0):
        remote.now_ms()


def test_a_deadline_bounds_what_a_new_connection_says_first(remote: Store, proxy: Proxy) -> None:
    remote.close()
    proxy.hold(b"idle_in_transaction_session_timeout")
    with pytest.raises(errors.StoreUnavailable, match=r"within 2 s"), remote.deadline(2.0):
        remote.now_ms()
    proxy.restore()
    assert remote.now_ms()


def test_a_deadline_ends_a_transaction(remote: Store, proxy: Proxy) -> None:
    desk = Desk(remote)

    def publish_into_the_void() -> None:
        with remote.transaction():
            desk.publish()
            proxy.pause()
            desk.publish()

    with pytest.raises(errors.StoreUnavailable, match=r"within 0\.5 s"), remote.deadline(0.5):
        publish_into_the_void()
    proxy.restore()
    assert desk.claim() == []


def test_the_nearest_deadline_counts(remote: Store, proxy: Proxy) -> None:
    remote.now_ms()
    proxy.pause()
    with remote.deadline(60), pytest.raises(errors.StoreUnavailable, match=r"within 0\.2 s"), remote.deadline(0.2):
        remote.now_ms()
    proxy.restore()
    with remote.deadline(60), remote.deadline(600):
        assert remote.now_ms()


def test_nothing_begins_after_a_deadline(remote: Store, proxy: Proxy) -> None:
    with remote.deadline(0.0), pytest.raises(errors.StoreUnavailable, match="within 0 s"):
        remote.now_ms()
    assert remote.now_ms()


def test_a_dropped_connection_is_replaced_before_it_is_used(remote: Store, proxy: Proxy) -> None:
    remote.now_ms()
    proxy.drop()
    wait_until(lambda: proxy.connection_count == 0)
    with pytest.raises(errors.StoreUnavailable):
        remote.now_ms()
    proxy.restore()
    assert remote.now_ms()


def test_an_answer_that_was_lost_is_not_taken_for_a_no(remote: Store, proxy: Proxy) -> None:
    desk = Desk(remote)
    desk.publish(task_id="warm up")
    dropped = proxy.drop_next_response(b"repeated")
    with pytest.raises(errors.StoreUnavailable):
        desk.publish(task_id="repeated")
    assert dropped.wait(timeout=60)
    proxy.restore()
    assert desk.messages.publish([desk.new(task_id="repeated")]) == [None]
    assert [message.task_id for message in desk.claim()] == ["warm up", "repeated"]


def test_a_restarted_server_is_found_again_without_an_error(own_postgres: PostgresServer) -> None:
    store = open_store(own_postgres.create_database(), Settings())
    store.schema.migrate()
    own_postgres.restart()
    assert store.schema.version() == store.schema.target
    own_postgres.stop(signal.SIGQUIT)
    with pytest.raises(errors.StoreUnavailable):
        store.now_ms()
    own_postgres.start()
    assert store.now_ms()
    store.close()


def test_a_frozen_holder_does_not_keep_its_locks(postgres_url: str) -> None:
    store = open_store(postgres_url, Settings(lease_s=6, renew_every_s=1, lease_margin_s=1, statement_timeout_s=5))
    store.schema.migrate()

    def pause_in_a_transaction() -> None:
        with store.transaction():
            store.queues.declare_exchange("e", "direct")
            wait_until(lambda: _sessions(postgres_url, "idle in transaction") == 0)

    with pytest.raises(errors.StoreUnavailable):
        pause_in_a_transaction()
    assert store.queues.exchange_type("e") is None
    store.close()


def test_a_sqlite_lock_is_waited_for_and_then_named(sqlite_url: str) -> None:
    store = open_store(sqlite_url, Settings(statement_timeout_s=0.1), create=True)
    other = sqlite3.connect(store.url.path or "", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(errors.StoreBusy, match="locked"):
        store.queues.declare_exchange("e", "direct")
    other.execute("COMMIT")
    store.queues.declare_exchange("e", "direct")
    other.close()
    store.close()


@pytest.mark.parametrize("holds", ["BEGIN IMMEDIATE", "BEGIN; SELECT * FROM sqlite_master"])
def test_a_sqlite_file_that_others_use_without_a_write_ahead_log_is_waited_for(tmp_path: Path, holds: str) -> None:
    """As a Django project's is, when the first worker on it starts."""
    path = tmp_path / "site.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE shop (id integer)")
        *begin, last = holds.split("; ")
        for statement in begin:
            other.execute(statement)
        reading = other.execute(last)
        hurried = open_store(f"sqlite:///{path}", Settings(statement_timeout_s=0.1))
        with pytest.raises(errors.StoreBusy, match="locked"):
            hurried.now_ms()
        store = open_store(f"sqlite:///{path}", Settings())
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(store.now_ms)
            with pytest.raises(StillRunning):
                asked.result(timeout=0.2)
            reading.close()
            other.execute("COMMIT")
            assert asked.result(timeout=60)
        store.close()
        hurried.close()


def test_a_deadline_bounds_the_wait_for_a_sqlite_lock(sqlite_url: str) -> None:
    store = open_store(sqlite_url, Settings(statement_timeout_s=29), create=True)
    other = sqlite3.connect(store.url.path or "", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(errors.StoreUnavailable, match=r"within 0\.1 s"), store.deadline(0.1):
        store.queues.declare_exchange("e", "direct")
    other.close()
    store.queues.declare_exchange("e", "direct")
    store.close()


FORK = """
import os, sys
from atomic_celery.config import Settings
from atomic_celery.store.store import open_store

store = open_store(sys.argv[1], Settings())
with store.transaction():
    store.queues.declare_exchange("parents", "direct")
    child = os.fork()
    if child == 0:
        assert store.queues.exchange_type("parents") is None, "the parent's transaction was used"
        store.queues.declare_exchange("childs", "direct") if sys.argv[2] == "write" else store.now_ms()
        sys.exit(42)
    assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 42
assert store.queues.exchange_type("parents") == "direct"
print("both", store.queues.exchange_type("childs"))
"""


def test_a_forked_child_has_connections_of_its_own(desk: Desk, database_url: str) -> None:
    # SQLite has one writer at a time, and that is the parent.
    act = "write" if desk.store.dialect == "postgresql" else "read"
    answer = _run(FORK, database_url, act)
    assert answer.stdout.split() == ["both", "direct" if act == "write" else "None"], answer.stderr


PUBLISH = """
import sys
from atomic_celery.config import Settings
from atomic_celery.store.records import Holder, Lane, NewMessage, Settlement
from atomic_celery.store.store import open_store

store = open_store(sys.argv[1], Settings())
queue = store.queues.get("celery")
store.messages.publish([NewMessage(queue.id, "work")])
turn = store.messages.turn(Holder("h", "b"), Settlement(), [Lane(queue.id, 0)], 1, 30_000)
with store.transaction():
    store.messages.complete([message.held for message in turn.claimed])
print("alive")
"""

POINTS = {
    "publish.committing": [],
    "publish.committed": ["ready"],
    "turn.committing": ["ready"],
    "turn.committed": ["running"],
    "transaction.committing": ["running"],
    "transaction.committed": [],
}


@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_at_a_crash_point_has_done_all_or_nothing(desk: Desk, database_url: str, point: str) -> None:
    answer = _run(PUBLISH, database_url, faults=f"{point}=kill")
    assert answer.returncode == -signal.SIGKILL, answer.stderr
    assert [view.state for view in desk.store.reads.messages()] == POINTS[point]


def _run(program: str, *arguments: str, faults: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "ATOMIC_FAULTS": faults},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _sessions(url: str, state: str) -> int:
    connection = psycopg2.connect(url)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = %s", (state,)
            )
            [row] = cursor.fetchall()
    finally:
        connection.close()
    return int(row[0])
