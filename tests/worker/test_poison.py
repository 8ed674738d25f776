"""Messages that no Celery ever sends: they end themselves, and not the workers that receive them."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import WorkerLostError

from atomic_celery.store import NewMessage
from atomic_celery.store.reads import Filter
from tests.support.workers import APPLICATION, Fleet

ADD = f"{APPLICATION}.add"


def throw_in(fleet: Fleet, headers: dict[str, Any], body: str = "[[1, 2], {}, {}]") -> None:
    """Publish what is no proper task."""
    with fleet.app.connection_for_write() as connection, connection.Producer() as producer:
        producer.publish(
            body,
            routing_key="celery",
            headers=headers,
            content_type="application/json",
            content_encoding="utf-8",
            declare=[fleet.app.amqp.queues["celery"]],
        )


UNRECEIVABLE: dict[str, dict[str, Any]] = {
    "no id": {"task": ADD},
    "a list for an id": {"task": ADD, "id": ["t0"]},
    "a mapping for an id": {"task": ADD, "id": {"t": 0}},
    "a list for a name": {"task": ["a", "list"], "id": "t1"},
    "a mapping for a name": {"task": {}, "id": "t2"},
    "a limit for limits": {"task": ADD, "id": "t3", "timelimit": 7},
    "words for limits": {"task": ADD, "id": "t4", "timelimit": ["a", "b"]},
    "a date that is none": {"task": ADD, "id": "t6", "eta": "next week"},
    "an end that is none": {"task": ADD, "id": "t7", "expires": "never"},
    "a number of stamps": {"task": ADD, "id": "t5", "stamped_headers": 3, "stamps": "x"},
}
UNREADABLE = [
    "[[1, 2], {}]",
    "[1, 2, 3]",
    "{broken",
    '[[1, 2], {}, {"callbacks": 5}]',
    '[[1, 2], {}, {"chain": 7}]',
    "",
]


@pytest.mark.parametrize("pool", ["atomic", "prefork", "solo"])
def test_messages_that_cannot_be_received_are_buried_and_their_worker_lives(
    fleet_with_results: Fleet, pool: str
) -> None:
    fleet = fleet_with_results
    for headers in UNRECEIVABLE.values():
        throw_in(fleet, headers)
    worker = fleet.worker(pool=pool).start()
    assert fleet.send("add", 1, 2).get(timeout=60) == 3
    fleet.wait_until(lambda: len(fleet.store.reads.messages(Filter(state="dead"))) == len(UNRECEIVABLE))
    for dead in fleet.store.reads.messages():
        reasons = [crash.reason for crash in fleet.store.reads.crashes(dead.id)]
        assert [reason[:22] for reason in reasons] == ["it cannot be received:"] * 5
    assert not worker.events("draining")
    for task_id in ("t4", "t6", "t7"):
        with pytest.raises(WorkerLostError, match="buried: it cannot be received"):
            fleet.app.AsyncResult(task_id).get(timeout=60)


@pytest.mark.parametrize("task", ["note", "early_note"])
def test_a_message_that_no_child_can_be_handed_holds_up_nobody(fleet_with_results: Fleet, task: str) -> None:
    fleet = fleet_with_results
    nested: list[Any] = []
    for _ in range(900):  # enough for pickle, and not yet for JSON
        nested = [nested]
    throw_in(fleet, {"task": f"{APPLICATION}.{task}", "id": "t1", "nested": nested}, '[["n"], {}, {}]')
    worker = fleet.worker().start()
    assert fleet.send("add", 1, 2).get(timeout=60) == 3
    fleet.app.AsyncResult("t1").get(timeout=60, propagate=False)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_bodies_that_are_none_fail_their_tasks_and_their_worker_lives(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    for number, body in enumerate(UNREADABLE):
        throw_in(fleet, {"task": ADD, "id": f"t{number}"}, body)
    worker = fleet.worker().start()
    assert fleet.send("add", 1, 2).get(timeout=60) == 3
    for number, _ in enumerate(UNREADABLE):
        assert isinstance(fleet.app.AsyncResult(f"t{number}").get(timeout=60, propagate=False), Exception)
    assert not worker.events("draining")


def test_a_task_whose_end_the_database_refuses_runs_once_and_holds_up_nobody(postgres_url: str, tmp_path: Path) -> None:
    with closing(Fleet(postgres_url, tmp_path, quick=False, results=True)) as fleet:
        fleet.send("note", "before")
        queue = fleet.store.queues.get("celery")
        assert queue is not None
        [message] = fleet.store.reads.messages()
        payload = json.loads(fleet.store.reads.payload(message.id) or "")
        payload["headers"]["id"] = "no\0id"
        payload["body"] = '[["poison"], {}, {}]'
        name = f"{APPLICATION}.note"
        fleet.store.messages.publish([NewMessage(queue.id, json.dumps(payload), task_id="t1", task_name=name)])
        results = [fleet.send("add", number, 1) for number in range(5)]
        worker = fleet.worker().start()
        assert [result.get(timeout=60) for result in results] == [1, 2, 3, 4, 5]
        fleet.wait_until(lambda: fleet.store.reads.messages(Filter(state="dead")), what="the poison is buried")
        with pytest.raises(WorkerLostError, match="its end cannot be stored"):
            fleet.app.AsyncResult("t1").get(timeout=60)
        assert sorted(fleet.ledger.rows()) == ["before", "poison"]
        assert worker.events("degraded") == []
