"""Hosts that claim at the same moment, on real connections: no limit lets more through than it says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from threading import Barrier, Event
from urllib.parse import urlsplit

from atomic_celery.store.records import Claimed, Holder, Limit
from tests.store.desk import ALICE, BOB, LEASE_MS, Desk
from tests.store.hosts import ONE, Host, limited
from tests.support.postgres import Postgres

THREADS, TURNS = 4, 40
RATE_MS = 500


def test_no_two_hosts_count_the_same_room(desk: Desk) -> None:
    desk.store.at(None)
    limits = [Limit(f"t:{number}", "t", max_running=number + 1) for number in range(3)]
    rate = Limit("rate", "rate", rate_starts=4, rate_ms=RATE_MS)
    for limit in [*limits, rate]:
        limited(desk, limit, 60)
    name_of = {limit_id: name for name, limit_id in desk.store.limits.resolve([*limits, rate]).items()}
    together, over, numbers = Barrier(THREADS), Event(), count()
    starts_ms: list[int] = []

    def work() -> int:
        host = Host(desk, Holder(f"h{next(numbers)}", "b"))
        held: list[Claimed] = []
        done = 0
        together.wait(timeout=60)
        for turns in count():
            if turns >= TURNS and len(starts_ms) > 4:
                break
            turn = host.turn([each.held for each in held], 5)
            done += len(turn.settled)
            held = turn.claimed
            for each in held:
                view = desk.store.reads.message(each.id)
                if name_of[each.limit_id or 0] == "rate" and view is not None and view.claimed_ms is not None:
                    starts_ms.append(view.claimed_ms)
        return done + len(desk.messages.complete([each.held for each in held]))

    def watch() -> int:
        most = 0
        while not over.is_set():
            running = [view.task_name for view in desk.store.reads.messages(limit=1000) if view.state == "running"]
            for number in range(3):
                assert running.count(f"t:{number}") <= number + 1
            most = max(most, len(running))
        return most

    with ThreadPoolExecutor(THREADS + 1) as pool:
        watching = pool.submit(watch)
        workers = [pool.submit(work) for _ in range(THREADS)]
        try:
            done = [each.result(timeout=100) for each in workers]
        finally:
            over.set()
        assert watching.result(timeout=60) > 1

    assert sum(done) > 60
    starts_ms.sort()
    assert len(starts_ms) > 4
    assert all(later - first >= RATE_MS for first, later in zip(starts_ms, starts_ms[4:], strict=False))


SLOW_INSERTS = """
CREATE FUNCTION dawdle() RETURNS trigger AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN NEW; END $$ LANGUAGE plpgsql;
CREATE TRIGGER dawdle BEFORE INSERT ON atomic_claim FOR EACH ROW EXECUTE FUNCTION dawdle();
CREATE TRIGGER dawdle BEFORE INSERT ON atomic_admitted FOR EACH ROW EXECUTE FUNCTION dawdle();
CREATE TRIGGER dawdle BEFORE INSERT ON atomic_start FOR EACH ROW EXECUTE FUNCTION dawdle();
"""


def test_a_start_is_noted_as_of_its_claim_however_long_that_takes(
    postgres_desk: Desk, postgres: Postgres, postgres_url: str
) -> None:
    """One that was noted as earlier would let the next in before a whole period has passed between their claims."""
    desk, database = postgres_desk, urlsplit(postgres_url).path[1:]
    desk.store.at(None)
    [message_id] = limited(desk, Limit("rate", "rate", rate_starts=4, rate_ms=RATE_MS), 1)
    postgres.execute(SLOW_INSERTS, database=database)
    desk.store.limits.admit(ALICE, desk.store.limits.survey(desk.lanes(), 1).gated, LEASE_MS)
    view = desk.store.reads.message(message_id)
    assert view is not None
    assert postgres.execute("SELECT at_ms FROM atomic_start", database=database) == [(view.claimed_ms,)]


def test_who_admits_keeps_the_room_from_others_until_it_is_known_who_has_it(postgres_desk: Desk) -> None:
    desk, limits = postgres_desk, postgres_desk.store.limits
    ids = limited(desk, ONE, 2)
    first = limits.survey(desk.lanes(), 1).gated
    second = [replace(first[0], id=ids[1])]

    with ThreadPoolExecutor(1) as other, desk.store.transaction():
        admitted = limits.admit(ALICE, first, LEASE_MS)
        assert len(admitted) == 1
        assert other.submit(limits.admit, BOB, second, LEASE_MS).result(timeout=60) == []
    assert limits.admit(BOB, second, LEASE_MS) == []

    desk.messages.complete([admitted[0].held])
    assert len(limits.admit(BOB, second, LEASE_MS)) == 1
