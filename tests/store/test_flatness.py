"""What a claim and a renewal read and write does not grow with the queue, nor with rows nobody may vacuum."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from atomic_celery.store.statements import Statements
from tests.store.desk import ALICE, LEASE_MS, Desk
from tests.support.waiting import wait_until

FEW, MANY = 200, 50_000
CLAIMED = 10


@pytest.fixture
def session(postgres_desk: Desk) -> Iterator[Any]:
    """The driver's cursor on a session of the product's own, set up as all of them are."""
    with postgres_desk.store._database.own_connection() as driver, driver.cursor() as cursor:
        cursor.execute(_turn().prepare)
        yield cursor


@pytest.fixture
def snapshot(postgres_desk: Desk, postgres_url: str) -> Iterator[None]:
    """Somebody who looks at an old state of the database, so that nothing dead can be cleared."""
    reader = psycopg2.connect(postgres_url)
    reader.set_session(isolation_level="REPEATABLE READ")
    reader.cursor().execute("SELECT count(*) FROM atomic_ready")
    yield
    reader.rollback()
    reader.close()


def test_a_claim_reads_as_much_of_a_long_queue_as_of_a_short_one(postgres_desk: Desk, session: Any) -> None:
    _fill(postgres_desk, session, FEW)
    few = _buffers_of_a_claim(postgres_desk, session)
    _fill(postgres_desk, session, MANY)
    many = _buffers_of_a_claim(postgres_desk, session)
    # A B-tree of 50 000 entries is one or two levels deeper: for the lanes, and for each message.
    assert many <= few * 1.3 + 4 * CLAIMED


@pytest.mark.usefixtures("snapshot")
def test_a_claim_behind_its_cursor_does_not_read_what_nobody_may_vacuum(postgres_desk: Desk, session: Any) -> None:
    desk = postgres_desk
    _fill(desk, session, MANY)
    session.execute("WITH gone AS (DELETE FROM atomic_ready RETURNING message_id) SELECT max(message_id) FROM gone")
    [(last,)] = session.fetchall()
    _fill(desk, session, CLAIMED)
    from_the_start = _buffers_of_a_claim(desk, session)
    behind = _buffers_of_a_claim(desk, session, after=last)
    assert behind < from_the_start / 4, (behind, from_the_start)


def test_renewals_stay_on_their_page_and_touch_no_index(postgres_desk: Desk, session: Any) -> None:
    desk = postgres_desk
    desk.messages.publish([desk.new() for _ in range(200)])
    held = [message.held for message in desk.claim(limit=200)]
    for _ in range(20):
        assert len(desk.messages.renew(ALICE, held, LEASE_MS).renewed) == 200
    desk.store.close()  # a session reports its counts when it ends, and ends when it sees us gone
    wait_until(lambda: (_updates(session) or (0, 0))[0] == 20 * 200, describe=lambda: _updates(session))
    assert _updates(session) == (20 * 200, 20 * 200)


def test_neither_a_claim_nor_a_renewal_rewrites_what_was_published(postgres_desk: Desk, session: Any) -> None:
    desk = postgres_desk
    message_id = desk.publish("x" * 100_000)
    written = "SELECT ctid, xmin, xmax FROM atomic_message WHERE id = %s"
    session.execute(written, (message_id,))
    before = session.fetchall()
    for _ in range(3):
        held = desk.claim_one().held
        desk.messages.renew(ALICE, [held], LEASE_MS)
        desk.messages.release([held])
    session.execute(written, (message_id,))
    assert session.fetchall() == before


def _fill(desk: Desk, session: Any, count: int) -> None:
    """Make *count* messages ready without the cost of publishing each."""
    session.execute(
        "WITH message AS (INSERT INTO atomic_message (queue_id, priority, payload, published_ms)"
        " SELECT %s, 0, 'work', 0 FROM generate_series(1, %s) RETURNING id, queue_id, priority)"
        " INSERT INTO atomic_ready (message_id, queue_id, priority, position, fence, crashes)"
        " SELECT id, queue_id, priority, id, 0, 0 FROM message",
        (desk.queue_id, count),
    )


def _updates(session: Any) -> tuple[int, int] | None:
    """Return how many updates of claims were reported, and how many of them were HOT; None: not yet."""
    session.execute("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'atomic_claim'")
    [(updated, hot)] = session.fetchall()
    return (updated, hot) if updated else None


def _buffers_of_a_claim(desk: Desk, session: Any, after: int = 0) -> int:
    """Return how many pages a claim of ten messages touches; it is undone."""
    lanes = [(lane.queue_id, lane.priority, lane.after) for lane in desk.lanes(after)]
    parameters = {
        "completed": "[]",
        "lanes": json.dumps(lanes),
        "limit": CLAIMED,
        "holder": "alice",
        "boot": "b",
        "is_host": False,
        "lease_ms": LEASE_MS,
        "now_ms": None,
    }
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {_turn().execute}"
    for _ in range(2):  # the first one also sets hint bits and fills the session's caches
        session.execute("BEGIN")
        session.execute(explain, parameters)
        [(plan,)] = session.fetchall()
        session.execute("ROLLBACK")
    assert plan[0]["Plan"]["Actual Rows"] == CLAIMED
    return int(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])


def _turn() -> Any:
    return Statements("postgresql", "atomic").of("messages")["turn"]
