"""Messages that wait for their time, and messages that continue others."""

from __future__ import annotations

import pytest

from atomic_celery import errors
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import Claimed, NewMessage
from tests.store.desk import ALICE, BOB, LEASE_MS, Desk


def test_a_delayed_message_is_not_claimed_before_its_time(desk: Desk) -> None:
    desk.publish("later", due_ms=desk.now_ms + 5000)
    desk.publish("sooner", due_ms=desk.now_ms + 2000)
    desk.publish("overdue", due_ms=desk.now_ms)
    assert [message.payload for message in desk.claim()] == ["overdue"]
    assert desk.messages.promote() == (0, 2000)
    desk.pass_ms(1999)
    assert desk.messages.promote() == (0, 1)
    desk.pass_ms(1)
    assert desk.messages.promote() == (1, 3000)
    assert [message.payload for message in desk.claim()] == ["sooner"]
    desk.pass_ms(3000)
    assert desk.messages.promote() == (1, None)
    assert [message.payload for message in desk.claim()] == ["later"]


def test_who_comes_due_first_is_first_in_line_but_behind_who_is_ready(desk: Desk) -> None:
    for name, delay_ms in [("third", 300), ("first", 100), ("second", 200)]:
        desk.publish(name, due_ms=desk.now_ms + delay_ms)
    desk.publish("ready")
    desk.pass_ms(300)
    assert desk.messages.promote() == (3, None)
    desk.publish("last")
    assert [message.payload for message in desk.claim()] == ["ready", "first", "second", "third", "last"]


def test_promotion_stops_at_its_limit_and_says_that_there_is_more(desk: Desk) -> None:
    for n in range(3):
        desk.publish(str(n), due_ms=desk.now_ms + 1)
    desk.pass_ms(1)
    assert desk.messages.promote(limit=2) == (2, 0)
    assert desk.messages.promote(limit=2) == (1, None)


def test_a_held_message_can_be_put_off(desk: Desk) -> None:
    message_id = desk.publish(priority=7)
    held = desk.claim_one()
    assert desk.messages.delay(held.held, desk.now_ms + 1000)
    assert desk.state(message_id) == "delayed"
    assert desk.claim(BOB) == []
    desk.pass_ms(1000)
    desk.messages.promote()
    again = desk.claim_one(BOB)
    assert (again.id, again.fence, again.priority, again.crashes) == (message_id, 2, 7, 0)


def test_a_task_id_passes_on_to_the_successor(desk: Desk) -> None:
    desk.publish("first try", task_id="t")
    held = desk.claim_one()
    successor = desk.messages.supersede(held.held, desk.new("second try", task_id="t", due_ms=desk.now_ms + 1000))
    assert desk.messages.publish([desk.new("a client's repetition", task_id="t")]) == [None]
    assert desk.messages.complete([held.held]) == {held.id}
    assert [view.id for view in desk.store.reads.messages()] == [successor]
    desk.pass_ms(1000)
    desk.messages.promote()
    assert desk.claim_one().payload == "second try"


def test_superseding_again_finds_the_same_successor(desk: Desk) -> None:
    desk.publish(task_id="t")
    held = desk.claim_one()
    first = desk.messages.supersede(held.held, desk.new("next", task_id="t"))
    assert desk.messages.supersede(held.held, desk.new("next", task_id="t")) == first


def test_a_successor_in_another_queue_may_be_there_already(desk: Desk) -> None:
    other = desk.store.queues.declare(QueueSpec(name="other"))
    [there] = desk.messages.publish([NewMessage(other.id, "there", task_id="t")])
    desk.publish(task_id="t")
    held = desk.claim_one()
    assert desk.messages.supersede(held.held, NewMessage(other.id, "next", task_id="t")) == there


@pytest.mark.parametrize("ends", ["complete", "release", "delay", "crash", "lapse", "holder dies"])
def test_however_it_ends_what_has_a_successor_does_not_come_back(desk: Desk, ends: str) -> None:
    desk.publish("first try", task_id="t")
    desk.messages.crash([desk.claim_one().held], "an earlier crash")
    held = desk.claim_one()
    successor = desk.messages.supersede(held.held, desk.new("second try", task_id="t", due_ms=desk.now_ms + 10**9))
    assert _end(desk, held, ends) == []
    assert [view.id for view in desk.store.reads.messages()] == [successor]
    assert desk.traces_of_the_gone() == []


def _end(desk: Desk, held: Claimed, how: str) -> object:
    """End a claim; return the crashes reported of it."""
    if how == "complete":
        return [] if desk.messages.complete([held.held]) else None
    if how == "release":
        return [] if desk.messages.release([held.held]) else None
    if how == "delay":
        return [] if desk.messages.delay(held.held, desk.now_ms) else None
    if how == "crash":
        return desk.messages.crash([held.held], "killed")
    if how == "lapse":
        desk.pass_ms(LEASE_MS)
        return desk.messages.reclaim()
    return desk.messages.release_holder(ALICE.id, ALICE.boot, "killed")


def test_a_holder_that_lost_its_message_leaves_no_successor(desk: Desk) -> None:
    desk.publish("first try", task_id="t")
    paused = desk.claim_one(ALICE)
    desk.pass_ms(LEASE_MS)
    with pytest.raises(errors.LeaseLost, match=r"fence 1, expired\) while superseding"):
        desk.messages.supersede(paused.held, desk.new("second try", task_id="t"))
    desk.messages.reclaim()
    with pytest.raises(errors.LeaseLost):
        desk.messages.supersede(paused.held, desk.new("second try", task_id="t"))
    again = desk.claim_one(BOB)
    assert (again.payload, again.task_id) == ("first try", "t")
