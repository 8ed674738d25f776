"""Crashes are counted and remembered; too many bury a message; an operator has the last word."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atomic_celery.config import Settings
from atomic_celery.store.records import Crashed, Holder
from atomic_celery.store.store import Store, open_store
from tests.store.desk import ALICE, BOB, LEASE_MS, NOW_MS, Desk

MAX_CRASHES = Settings().max_crashes


def test_a_message_whose_process_died_is_ready_at_once(desk: Desk) -> None:
    message_id = desk.publish(task_id="t", task_name="name")
    desk.publish("behind")
    held = desk.claim(limit=1)[0]
    assert desk.messages.crash([held.held], "killed by signal 9") == [
        Crashed(message_id, 1, 1, False, "t", "name", "alice")
    ]
    again = desk.claim(BOB, limit=1)[0]
    assert (again.id, again.fence, again.crashes) == (message_id, 2, 1)


def test_every_crash_is_remembered_with_its_holder_and_reason(desk: Desk) -> None:
    message_id = desk.publish()
    desk.messages.crash([desk.claim_one(ALICE).held], "out of memory")
    desk.claim_one(BOB)
    desk.pass_ms(LEASE_MS)
    desk.messages.reclaim()
    crashes = [(crash.fence, crash.holder, crash.reason) for crash in desk.store.reads.crashes(message_id)]
    assert crashes == [(1, "alice", "out of memory"), (2, "bob", "lease ran out")]


def test_too_many_crashes_bury_a_message(desk: Desk) -> None:
    message_id = desk.publish()
    for count in range(1, MAX_CRASHES + 1):
        [report] = desk.messages.crash([desk.claim_one().held], "killed")
        assert (report.crashes, report.buried) == (count, count == MAX_CRASHES)
    assert desk.claim() == []
    buried = desk.store.reads.message(message_id)
    assert buried is not None
    assert (buried.state, buried.reason, buried.buried_ms) == ("dead", "killed", NOW_MS)
    assert len(desk.store.reads.crashes(message_id)) == MAX_CRASHES


def test_leases_that_ran_out_are_reclaimed_and_others_are_not(desk: Desk) -> None:
    lapsed, renewed = desk.publish(), desk.publish()
    held = desk.claim()
    desk.pass_ms(LEASE_MS - 1)
    desk.messages.renew(ALICE, [held[1].held], LEASE_MS)
    assert desk.messages.reclaim() == []
    desk.pass_ms(1000)
    assert [report.id for report in desk.messages.reclaim()] == [lapsed]
    assert (desk.state(lapsed), desk.state(renewed)) == ("ready", "running")


def test_reclaiming_stops_at_its_limit(desk: Desk) -> None:
    for n in range(3):
        desk.publish(str(n))
    desk.claim()
    desk.pass_ms(LEASE_MS)
    assert len(desk.messages.reclaim(limit=2)) == 2
    desk.pass_ms(1000)
    assert len(desk.messages.reclaim(limit=2)) == 1


def test_the_fleet_looks_for_lapsed_leases_at_most_once_a_second(postgres_desk: Desk) -> None:
    desk = postgres_desk
    for _ in range(2):
        desk.publish()
    desk.claim(limit=1)
    desk.pass_ms(10)
    desk.claim(limit=1)
    desk.pass_ms(LEASE_MS - 10)
    assert len(desk.messages.reclaim()) == 1
    desk.pass_ms(999)
    assert desk.messages.reclaim() == []
    desk.pass_ms(1)
    assert len(desk.messages.reclaim()) == 1


def test_what_a_dead_predecessor_held_is_ready_at_once(desk: Desk) -> None:
    mine, theirs = desk.publish(), desk.publish()
    desk.claim(Holder("alice", "old"), limit=1)
    desk.claim(Holder("alice", "new"), limit=1)
    [report] = desk.messages.release_holder("alice", "old", "its host died")
    assert (report.id, report.crashes) == (mine, 1)
    assert (desk.state(mine), desk.state(theirs)) == ("ready", "running")
    assert desk.messages.release_holder("alice", "old", "its host died") == []


def test_a_dead_message_comes_back_with_its_fence_and_no_crashes(desk: Desk) -> None:
    message_id = desk.publish()
    for _ in range(MAX_CRASHES):
        desk.messages.crash([desk.claim_one().held], "killed")
    assert desk.messages.requeue([message_id, 999]) == {message_id}
    again = desk.claim_one()
    assert (again.fence, again.crashes) == (MAX_CRASHES + 1, 0)


def test_a_requeued_message_goes_to_the_end_of_the_line(desk: Desk) -> None:
    delayed = desk.publish("delayed", due_ms=NOW_MS + 10**9)
    desk.publish("ready")
    assert desk.messages.requeue([delayed]) == {delayed}
    desk.publish("next")
    assert [message.payload for message in desk.claim()] == ["ready", "delayed", "next"]
    assert desk.messages.promote() == (0, None)


@pytest.mark.parametrize("verb", ["bury", "requeue", "delete"])
def test_a_holder_loses_what_an_operator_takes(desk: Desk, verb: str) -> None:
    message_id = desk.publish()
    held = desk.claim_one()
    assert _operate(desk, verb, message_id) == {message_id}
    assert desk.messages.renew(ALICE, [held.held], LEASE_MS).lost == {message_id}
    assert desk.messages.complete([held.held]) == set()
    assert desk.state(message_id) == {"bury": "dead", "requeue": "ready", "delete": None}[verb]
    if verb == "requeue":
        assert desk.claim_one(BOB).fence == held.fence + 1


@pytest.mark.parametrize("state", ["ready", "delayed", "running", "dead"])
def test_an_operator_buries_and_deletes_whatever_the_state(desk: Desk, state: str) -> None:
    ids = {_in_state(desk, state) for _ in range(2)}
    expected = set() if state == "dead" else ids
    assert desk.messages.bury(sorted(ids), "bad luck") == expected
    assert {desk.state(message_id) for message_id in ids} == {"dead"}
    assert desk.messages.delete([*ids, 999]) == ids
    assert desk.store.reads.messages() == []


def test_an_operator_deletes_from_any_state_at_once(desk: Desk) -> None:
    ids = {_in_state(desk, state) for state in ("running", "dead", "delayed", "ready")}
    assert desk.messages.delete(sorted(ids)) == ids
    assert desk.store.reads.messages() == []


def test_a_message_with_a_successor_is_left_to_end_by_itself(desk: Desk) -> None:
    message_id = desk.publish(task_id="t")
    held = desk.claim_one()
    desk.messages.supersede(held.held, desk.new("next", task_id="t", due_ms=NOW_MS + 10**9))
    assert desk.messages.requeue([message_id]) == desk.messages.bury([message_id], "x") == set()
    assert desk.messages.complete([held.held]) == {message_id}


@pytest.fixture
def impatient(database_url: str) -> Iterator[Store]:
    store = open_store(database_url, Settings(max_crashes=1))
    store.schema.migrate()
    yield store
    store.close()


def test_with_max_crashes_of_one_the_first_crash_buries(impatient: Store) -> None:
    desk = Desk(impatient)
    desk.publish()
    [report] = desk.messages.crash([desk.claim_one().held], "killed")
    assert report.buried


def _operate(desk: Desk, verb: str, message_id: int) -> set[int]:
    if verb == "bury":
        return desk.messages.bury([message_id], "bad luck")
    return desk.messages.requeue([message_id]) if verb == "requeue" else desk.messages.delete([message_id])


def _in_state(desk: Desk, state: str) -> int:
    message_id = desk.publish(due_ms=NOW_MS + 10**9 if state == "delayed" else None)
    if state == "running":
        assert [message.id for message in desk.claim()] == [message_id]
    elif state == "dead":
        assert desk.messages.bury([message_id], "before") == {message_id}
    return message_id
