"""Two sessions at one message at the same moment: locks decide, and time is read after the wait."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any

import psycopg2
import pytest

from atomic_celery.config import Settings
from atomic_celery.store.records import Renewal, Settlement
from atomic_celery.store.store import Store, open_store
from tests.store.desk import ALICE, BOB, LEASE_MS, Desk
from tests.support.waiting import wait_until

ROUNDS = 20


@pytest.fixture
def late(store: Store, database_url: str) -> Iterator[Store]:
    """Another process's store, which reads the clock when the desk's leases have just run out."""
    other = open_store(database_url, Settings())
    yield other
    other.close()


def test_a_message_is_either_completed_or_reclaimed(desk: Desk, late: Store) -> None:
    together = Barrier(2)
    for turn in range(ROUNDS):
        message_id = desk.publish()
        held = desk.claim_one()
        late.at(desk.now_ms + LEASE_MS + turn * 2000)

        def complete(held: tuple[int, int] = held.held) -> bool:
            together.wait(timeout=60)
            return bool(desk.messages.complete([held]))

        def reclaim() -> bool:
            together.wait(timeout=60)
            return bool(late.messages.reclaim())

        with ThreadPoolExecutor(2) as pool:
            completed, reclaimed = pool.submit(complete), pool.submit(reclaim)
        # The sweep leaves a claim alone that is being settled; it never takes one that was.
        assert not (completed.result() and reclaimed.result())
        assert desk.state(message_id) == ("ready" if reclaimed.result() else None)
        desk.messages.delete([message_id])


def test_a_message_is_either_renewed_or_given_back(desk: Desk, late: Store) -> None:
    late.at(desk.now_ms)
    together = Barrier(2)
    for _ in range(ROUNDS):
        message_id = desk.publish()
        held = desk.claim_one().held

        def renew(held: tuple[int, int] = held) -> Renewal:
            together.wait(timeout=60)
            return desk.messages.renew(ALICE, [held], LEASE_MS)

        def release(held: tuple[int, int] = held) -> bool:
            together.wait(timeout=60)
            return bool(late.messages.release([held]))

        with ThreadPoolExecutor(2) as pool:
            renewal, released = pool.submit(renew), pool.submit(release)
        assert released.result()
        assert desk.state(message_id) == "ready"
        assert desk.messages.renew(ALICE, [held], LEASE_MS).lost == {message_id}
        assert {message_id} in (renewal.result().renewed, renewal.result().unconfirmed, renewal.result().lost)
        desk.messages.delete([message_id])


@pytest.mark.parametrize("verb", ["complete", "release", "crash", "delay", "supersede"])
def test_who_waited_for_a_lock_is_judged_by_the_time_after_the_wait(
    postgres_desk: Desk, postgres_url: str, verb: str
) -> None:
    desk, lease_ms = postgres_desk, 700
    desk.store.at(None)
    message_id = desk.publish(task_id="t")
    [held] = desk.messages.claim(ALICE, desk.lanes(), 1, lease_ms)
    lapses_ms = desk.store.now_ms() + lease_ms

    with ThreadPoolExecutor(1) as pool, locked(postgres_url, message_id) as waiters:
        settled = pool.submit(_settled, desk, verb, held.held)
        wait_until(lambda: waiters() == 1 or settled.done(), describe="nobody waits for the lock")
        wait_until(lambda: desk.store.now_ms() > lapses_ms)
    assert settled.result() is False
    assert desk.state(message_id) == "running"


def test_a_renewal_does_not_wait_for_who_has_locked_a_claim(postgres_desk: Desk, postgres_url: str) -> None:
    desk = postgres_desk
    locked_id, free_id = desk.publish(), desk.publish()
    held = [message.held for message in desk.claim()]
    with locked(postgres_url, locked_id):
        renewal = desk.messages.renew(ALICE, held, LEASE_MS)
    assert renewal == Renewal(frozenset({free_id}), frozenset({locked_id}), frozenset())
    assert desk.messages.renew(ALICE, held, LEASE_MS).renewed == {locked_id, free_id}


def test_a_sweep_does_not_wait_for_who_writes_under_a_claim(postgres_desk: Desk, postgres_url: str) -> None:
    desk = postgres_desk
    locked_id, free_id = desk.publish(), desk.publish()
    desk.claim()
    desk.pass_ms(LEASE_MS)
    with locked(postgres_url, locked_id, "FOR KEY SHARE"):
        assert [report.id for report in desk.messages.reclaim()] == [free_id]
    desk.pass_ms(1000)
    assert [report.id for report in desk.messages.reclaim()] == [locked_id]


def test_a_claim_passes_over_what_another_is_claiming(postgres_desk: Desk) -> None:
    desk = postgres_desk
    first, second = desk.publish(), desk.publish()
    with ThreadPoolExecutor(1) as pool, desk.undone():
        assert [message.id for message in desk.claim(ALICE, limit=1)] == [first]
        assert [message.id for message in pool.submit(desk.claim, BOB).result(timeout=60)] == [second]
    assert [message.id for message in desk.claim(BOB)] == [first]


def test_a_claim_that_finds_nothing_leaves_no_trace(postgres_desk: Desk, postgres_url: str) -> None:
    desk = postgres_desk
    desk.publish()
    desk.claim()
    with desk.store.transaction():
        assert desk.messages.turn(BOB, Settlement(), desk.lanes(), 10, LEASE_MS).claimed == []
        assert desk.messages.take([desk.queue_id], 10) == []
        assert desk.messages.renew(BOB, [], LEASE_MS).renewed == set()
        assert _assigned_transaction_ids(postgres_url) == 0
        desk.publish()
        assert _assigned_transaction_ids(postgres_url) == 1


@contextmanager
def locked(url: str, message_id: int, how: str = "FOR UPDATE") -> Iterator[Any]:
    """Hold a lock on a claim; yields what counts those who wait for it."""
    holder = psycopg2.connect(url)
    cursor = holder.cursor()
    cursor.execute(f"SELECT FROM atomic_claim WHERE message_id = %s {how}", (message_id,))
    try:
        yield lambda: _ask(url, "SELECT count(*) FROM pg_locks WHERE NOT granted")
    finally:
        holder.rollback()
        holder.close()


def _settled(desk: Desk, verb: str, held: tuple[int, int]) -> bool:
    if verb == "delay":
        return desk.messages.delay(held, 0)
    if verb == "supersede":
        try:
            return bool(desk.messages.supersede(held, desk.new("next", task_id="t")))
        except Exception as error:
            return "while superseding" not in str(error)
    if verb == "crash":
        return bool(desk.messages.crash([held], "killed"))
    return bool(desk.messages.complete([held]) if verb == "complete" else desk.messages.release([held]))


def _assigned_transaction_ids(url: str) -> int:
    return _ask(
        url,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_xid IS NOT NULL",
    )


def _ask(url: str, question: str) -> int:
    connection = psycopg2.connect(url)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(question)
            [row] = cursor.fetchall()
    finally:
        connection.close()
    return int(row[0])
