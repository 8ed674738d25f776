"""Publishing: once per message, from any thread, from any process."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kombu
import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from atomic_celery import current, errors
from atomic_celery.outbox import Outbox
from atomic_celery.store import NewMessage, Store
from atomic_celery.store.messages import Messages
from tests.transport.conftest import Connect
from tests.transport.inbox import publish

QUEUE = kombu.Queue("tasks", routing_key="tasks")
TASK = [[], {}, {}]


def task(task_id: str, **headers: Any) -> dict[str, Any]:
    return {"id": task_id, "task": "a.task", "root_id": task_id, **headers}


def test_an_unfinished_task_id_is_stored_once_and_a_finished_one_may_come_again(connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, TASK, TASK, headers=task("t1"))
    assert len(store.reads.messages()) == 1
    QUEUE(connection.default_channel).get().ack()
    publish(connection, QUEUE, TASK, headers=task("t1"))
    assert len(store.reads.messages()) == 1


def test_what_the_table_shows_of_a_task(connect: Connect, store: Store) -> None:
    publish(connect(), QUEUE, TASK, headers=task("t1", root_id="r1"), priority=4)
    [view] = store.reads.messages()
    assert (view.task_id, view.task_name, view.root_id, view.priority) == ("t1", "a.task", "r1", 4)


@pytest.mark.parametrize("headers", [{}, task("t1")], ids=["message", "task"])
def test_a_publication_whose_answer_was_lost_is_stored_once(
    connect: Connect, store: Store, monkeypatch: pytest.MonkeyPatch, headers: dict[str, Any]
) -> None:
    real, lost = Messages.publish, []

    def lose_the_first_answer(self: Messages, new: Any) -> Any:
        stored = real(self, new)
        if not lost:
            lost.append(stored)
            raise errors.StoreUnavailable("the answer was lost")
        return stored

    connection = connect()
    QUEUE(connection.default_channel).declare()
    monkeypatch.setattr(Messages, "publish", lose_the_first_answer)
    kombu.Producer(connection).publish(
        TASK, routing_key="tasks", headers=headers, retry=True, retry_policy={"max_retries": 3, "interval_start": 0}
    )
    assert lost
    assert len(store.reads.messages()) == 1


def test_celerys_own_retries_reach_a_database_that_comes_back(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failed = Messages.publish, []

    def fail_twice(self: Messages, new: Any) -> Any:
        if len(failed) < 2:
            failed.append(new)
            raise errors.StoreUnavailable("away")
        return real(self, new)

    with Celery("retrying", broker=url, set_as_current=False) as app:
        app.conf.task_publish_retry_policy = {"max_retries": 3, "interval_start": 0, "interval_step": 0}
        monkeypatch.setattr(Messages, "publish", fail_twice)
        app.send_task("a.task")
    assert len(failed) == 2
    assert len(store.reads.messages()) == 1


def test_celery_gives_up_with_its_own_error(url: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Messages, new: Any) -> Any:
        raise errors.StoreUnavailable("away")

    with Celery("giving up", broker=url, set_as_current=False) as app:
        app.conf.task_publish_retry_policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
        monkeypatch.setattr(Messages, "publish", fail)
        with pytest.raises(OperationalError):
            app.send_task("a.task")


def test_many_threads_publish_at_once(url: str, store: Store) -> None:
    with Celery("threads", broker=url, set_as_current=False) as app, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: app.send_task("a.task", args=(number,)), range(80)))
    assert len(store.reads.messages(limit=100)) == 80


def test_a_forked_child_publishes_and_its_parent_goes_on(url: str, store: Store) -> None:
    with Celery("forking", broker=url, set_as_current=False) as app:
        app.send_task("before.fork")
        fork = multiprocessing.get_context("fork")
        children = [fork.Process(target=app.send_task, args=("in.child",)) for _ in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
        app.send_task("after.fork")
    assert [child.exitcode for child in children] == [0, 0, 0]
    names = [str(view.task_name) for view in reversed(store.reads.messages())]
    assert names == ["before.fork", "in.child", "in.child", "in.child", "after.fork"]


def test_a_block_of_kombus_is_one_statement(connect: Connect, store: Store) -> None:
    connection = connect()
    QUEUE(connection.default_channel).declare()
    producer = kombu.Producer(connection)
    if not hasattr(producer, "batch"):
        pytest.skip("this kombu cannot publish in blocks")
    with producer.batch():
        for number in range(10):
            producer.publish(number, routing_key="tasks")
        assert store.reads.messages() == []
    views = store.reads.messages()
    assert len(views) == 10
    with contextlib.suppress(RuntimeError), producer.batch():
        producer.publish("never", routing_key="tasks")
        raise RuntimeError
    assert len(store.reads.messages()) == 10


def test_what_a_running_task_publishes_under_its_id_replaces_it_when_it_ends(connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, TASK, headers=task("t1"))
    message = QUEUE(connection.default_channel).get()
    claim = message.properties["atomic"]
    with current.holding(current.Running(claim["id"], claim["fence"], "t1")):
        publish(connection, QUEUE, TASK, headers=task("t1", retries=1))
    assert sorted(view.state for view in store.reads.messages()) == ["ready", "running"]
    message.ack()
    [successor] = store.reads.messages()
    assert successor.state == "ready"
    assert QUEUE(connection.default_channel).get().headers["retries"] == 1


def test_what_a_task_publishes_that_lost_its_lease_is_refused(connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, TASK, headers=task("t1"))
    claim = QUEUE(connection.default_channel).get().properties["atomic"]
    store.messages.release([(claim["id"], claim["fence"])])
    with current.holding(current.Running(claim["id"], claim["fence"], "t1")), pytest.raises(errors.LeaseLost):
        publish(connection, QUEUE, TASK, headers=task("t1", retries=1))
    assert len(store.reads.messages()) == 1


def test_an_outbox_takes_what_the_host_will_publish(connect: Connect, store: Store) -> None:
    connection = connect()
    QUEUE(connection.default_channel).declare()
    box = Outbox(store.journal)
    box.own_ids.add("t1")
    with current.holding(current.Running(1, 1, "t1", outbox=box)):
        publish(connection, QUEUE, TASK, headers=task("t1", retries=1))
        publish(connection, QUEUE, TASK, headers=task("t2"))
    assert [entry.task_id for entry in box.entries if isinstance(entry, NewMessage)] == ["t1"]
    assert [view.task_id for view in store.reads.messages()] == ["t2"]


def test_a_revoke_is_remembered_by_its_sender(url: str, store: Store) -> None:
    with Celery("revoking", broker=url, set_as_current=False) as app:
        app.control.revoke("t1")
        app.control.revoke(["t2", "t3"], terminate=True)
        app.control.ping(timeout=0.01)
    assert store.revocations.contains(["t1", "t2", "t3", "t4"]) == {"t1", "t2", "t3"}


def test_a_revoked_message_is_delivered_flagged(url: str, connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, TASK, headers=task("t1"))
    store.revocations.add(["t1"], keep_ms=60_000)
    assert QUEUE(connection.default_channel).get().properties["atomic"]["revoked"]


def test_two_threads_may_take_turns_with_one_connection(connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, "here")
    thread = threading.Thread(target=publish, args=(connection, QUEUE, "there"))
    thread.start()
    thread.join(60)
    assert len(store.reads.messages()) == 2
