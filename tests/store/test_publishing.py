"""A message is stored once per unfinished task id, where it belongs, or not at all."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from atomic_celery import errors
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import NewMessage
from tests.store.desk import BOB, NOW_MS, Desk

PAYLOADS = ["", "ü\u2028 %s %% :name 'quoted' \\ \"\n", '{"body": "\\u0000"}', "x" * 300_000]


@pytest.mark.parametrize("payload", PAYLOADS, ids=["empty", "odd", "zero", "long"])
@pytest.mark.parametrize("count", [1, 2], ids=["alone", "together"])
def test_what_is_claimed_is_what_was_published(desk: Desk, payload: str, count: int) -> None:
    facts = NewMessage(desk.queue_id, payload, task_name="t.ü", root_id="root", priority=3, expires_ms=NOW_MS + 1)
    new = [dataclasses.replace(facts, task_id=f"task-{n}") for n in range(count)]
    ids = desk.messages.publish(new)
    claimed = desk.claim()
    assert [message.id for message in claimed] == ids
    assert [message.payload for message in claimed] == [payload] * count
    assert [(m.task_id, m.priority, m.crashes, m.fence) for m in claimed] == [
        (f"task-{n}", 3, 0, 1) for n in range(count)
    ]


def test_a_claim_says_of_a_message_that_it_has_expired(desk: Desk) -> None:
    desk.publish("in time", expires_ms=NOW_MS + 1)
    desk.publish("late", expires_ms=NOW_MS)
    desk.publish("whenever")
    assert [(m.payload, m.expired) for m in desk.claim()] == [("in time", False), ("late", True), ("whenever", False)]


def test_a_claim_says_of_a_message_that_its_task_is_revoked(desk: Desk) -> None:
    desk.publish(task_id="revoked")
    desk.publish(task_id="welcome")
    desk.store.revocations.add(["revoked"], keep_ms=1000)
    assert [message.revoked for message in desk.claim()] == [True, False]


def test_an_unfinished_task_id_is_not_published_again(desk: Desk) -> None:
    desk.publish("first", task_id="t")
    assert desk.messages.publish([desk.new("again", task_id="t")]) == [None]
    held = desk.claim_one()
    assert desk.messages.publish([desk.new("still", task_id="t")]) == [None]
    desk.messages.complete([held.held])
    assert desk.messages.publish([desk.new("a new life", task_id="t")]) != [None]


def test_a_batch_stores_each_task_id_once_and_answers_in_order(desk: Desk) -> None:
    known = desk.publish("known", task_id="known")
    new = [desk.new(task_id=task_id) for task_id in ("a", "known", "b", "a")] + [desk.new(), desk.new()]
    a, again, b, twice, *anonymous = desk.messages.publish(new)
    assert (again, twice) == (None, None)
    assert None not in (a, b, *anonymous)
    assert [message.id for message in desk.claim()] == [known, a, b, *anonymous]


def test_a_task_id_may_be_unfinished_in_two_queues(desk: Desk) -> None:
    other = desk.store.queues.declare(QueueSpec(name="other"))
    desk.publish(task_id="t")
    assert desk.messages.publish([NewMessage(other.id, "work", task_id="t")]) != [None]


@pytest.mark.parametrize("count", [1, 2], ids=["alone", "together"])
def test_nothing_is_published_to_a_queue_that_is_gone(desk: Desk, count: int) -> None:
    gone = NewMessage(desk.queue_id + 1, "work")
    with pytest.raises(errors.QueueNotFound, match="declare it again"):
        desk.messages.publish([*[desk.new()] * (count - 1), gone])
    assert desk.claim() == []


def test_what_was_published_in_a_transaction_is_there_if_it_commits(desk: Desk) -> None:
    with desk.store.transaction():
        desk.publish("kept")
    with desk.undone():
        desk.publish("undone")
        desk.messages.publish([desk.new("undone"), desk.new("undone")])
    assert [message.payload for message in desk.claim()] == ["kept"]


def test_many_clients_that_publish_one_task_id_store_it_once(desk: Desk) -> None:
    clients, rounds = 4, 10
    together = Barrier(clients)

    def publish(client: int) -> list[int | None]:
        stored = []
        for turn in range(rounds):
            together.wait(timeout=60)
            new = [desk.new(task_id=f"one-{turn}")] if client % 2 else _two(desk, turn)
            stored += desk.messages.publish(new)
        return stored

    with ThreadPoolExecutor(clients) as pool:
        stored = [message_id for found in pool.map(publish, range(clients)) for message_id in found if message_id]
    claimed = desk.claim(BOB)
    assert sorted(stored) == [message.id for message in claimed]
    assert len({message.task_id for message in claimed}) == len(claimed) == 2 * rounds


def _two(desk: Desk, turn: int) -> list[NewMessage]:
    return [desk.new(task_id=f"two-{turn}"), desk.new(task_id=f"one-{turn}")]
