"""Claims: nine first, first in first out, each with the next fence, and no message to two holders."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import Claimed, Held, Holder, Lane, NewMessage, Settlement
from tests.store.desk import ALICE, BOB, LEASE_MS, Desk
from tests.store.hosts import Host


def test_a_message_is_claimed_by_one_holder(desk: Desk) -> None:
    message_id = desk.publish("work")
    assert desk.claim_one(ALICE).id == message_id
    assert desk.claim(BOB) == []
    assert desk.state(message_id) == "running"


def test_priorities_come_first_and_arrivals_in_order_within_one(desk: Desk) -> None:
    for name, priority in [("a0", 0), ("a9", 9), ("b0", 0), ("a4", 4), ("b9", 9)]:
        desk.publish(name, priority=priority)
    assert [message.payload for message in desk.claim(limit=3)] == ["a9", "b9", "a4"]
    assert [message.payload for message in desk.claim()] == ["a0", "b0"]


def test_lanes_are_served_in_the_order_given(desk: Desk) -> None:
    other = desk.store.queues.declare(QueueSpec(name="other"))
    desk.publish("celery")
    desk.messages.publish([NewMessage(other.id, "other"), NewMessage(other.id, "other 2")])
    lanes = [Lane(other.id, 0), Lane(desk.queue_id, 0)]
    claimed = desk.messages.claim(ALICE, lanes, 2, LEASE_MS)
    assert [message.payload for message in claimed] == ["other", "other 2"]
    claimed = desk.messages.claim(ALICE, lanes, 2, LEASE_MS)
    assert [message.payload for message in claimed] == ["celery"]


def test_a_claim_takes_no_more_than_its_limit_and_locks_nothing_else(desk: Desk) -> None:
    for n in range(5):
        desk.publish(str(n))
    assert [message.payload for message in desk.claim(limit=2)] == ["0", "1"]
    assert desk.claim(limit=0) == []
    assert [message.payload for message in desk.claim(BOB, limit=2)] == ["2", "3"]


def test_a_lane_is_read_behind_its_cursor_only(desk: Desk) -> None:
    first, second = desk.publish("first"), desk.publish("second")
    assert [message.id for message in desk.claim(after=first)] == [second]
    assert [message.id for message in desk.claim(after=second)] == []
    assert [message.position for message in desk.claim()] == [first]


def test_a_claim_says_how_long_its_message_could_have_been_claimed(desk: Desk) -> None:
    desk.publish("plain")
    desk.publish("delayed", due_ms=desk.now_ms + 1000)
    desk.pass_ms(1500)
    desk.messages.promote()
    desk.store.roots.turn("paused", "paused")
    desk.publish("gated", root_id="paused")
    desk.pass_ms(250)
    desk.store.roots.turn("paused", "running")
    claimed = [*desk.claim(), *Host(desk, ALICE).claim()]
    assert {each.payload: each.waited_ms for each in claimed} == {"plain": 1750, "delayed": 750, "gated": 250}

    desk.messages.release([each.held for each in claimed])
    assert {each.waited_ms for each in [*desk.claim(), *Host(desk, ALICE).claim()]} == {None}


def test_each_claim_of_a_message_has_the_next_fence(desk: Desk) -> None:
    message_id = desk.publish()
    for fence in (1, 2, 3):
        claimed = desk.claim_one()
        assert claimed.held == (message_id, fence)
        desk.messages.release([claimed.held])


def test_a_turn_settles_and_claims(desk: Desk) -> None:
    for n in range(4):
        desk.publish(str(n))
    done, given_back, crashed = desk.claim(limit=3)
    settlement = Settlement(
        completed=[done.held, (99, 1)], released=[given_back.held], crashed=[(crashed.held, "killed")]
    )
    turn = desk.messages.turn(BOB, settlement, desk.lanes(), 10, LEASE_MS)
    assert turn.settled == {done.id, given_back.id, crashed.id}
    assert [(report.id, report.crashes, report.holder) for report in turn.crashed] == [(crashed.id, 1, "alice")]
    assert [(message.payload, message.fence, message.crashes) for message in turn.claimed] == [
        ("1", 2, 0),
        ("2", 2, 1),
        ("3", 1, 0),
    ]
    assert desk.state(done.id) is None


def test_a_turn_that_fails_has_settled_nothing(desk: Desk) -> None:
    desk.publish()
    held = desk.claim_one()
    with desk.undone():
        assert desk.messages.turn(BOB, Settlement(completed=[held.held]), desk.lanes(), 1, LEASE_MS).settled
    assert desk.messages.complete([held.held]) == {held.id}


def test_what_is_taken_without_acknowledgement_is_gone(desk: Desk) -> None:
    other = desk.store.queues.declare(QueueSpec(name="other"))
    desk.publish("0")
    desk.publish("9", priority=9)
    desk.messages.publish([NewMessage(other.id, "other", priority=5)])
    taken = desk.messages.take([desk.queue_id, other.id], 2)
    assert len(taken) == 2
    taken += desk.messages.take([desk.queue_id, other.id], 2)
    assert sorted(message.payload for message in taken) == ["0", "9", "other"]
    assert [message.payload for message in taken if message.queue_id == desk.queue_id] == ["9", "0"]
    assert desk.messages.take([desk.queue_id, other.id], 2) == []
    assert all(desk.state(message.id) is None for message in taken)


def test_many_holders_get_every_message_once(desk: Desk) -> None:
    holders, messages = 4, 200
    desk.messages.publish([desk.new(str(n), priority=n % 3) for n in range(messages)])
    together = Barrier(holders)

    def drain(number: int) -> list[Claimed]:
        holder = Holder(f"h{number}", "b")
        mine: list[Claimed] = []
        done: list[Held] = []
        together.wait(timeout=60)
        while turn := desk.messages.turn(holder, Settlement(completed=done), desk.lanes(), 7, LEASE_MS).claimed:
            mine += turn
            done = [message.held for message in turn]
        return mine

    with ThreadPoolExecutor(holders) as pool:
        claimed = [message for mine in pool.map(drain, range(holders)) for message in mine]
    assert sorted(int(message.payload) for message in claimed) == list(range(messages))
    assert {message.fence for message in claimed} == {1}
    assert desk.store.reads.messages() == []
