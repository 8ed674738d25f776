"""A consumer sleeps until there is something, and is woken then; that is measured by what it asks, never by time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import kombu
import pytest

from atomic_celery import claimer, upkeep
from atomic_celery.store import Store
from tests.support.waiting import wait_until
from tests.transport.conftest import Connect
from tests.transport.inbox import consuming, publish

QUEUE = kombu.Queue("sleepy", routing_key="sleepy")


@contextmanager
def asleep(connection: kombu.Connection, queue: kombu.Queue = QUEUE) -> Iterator[list[Any]]:
    """Consume on a thread, in one call that waits for as long as it takes; yield what it received."""
    received: list[Any] = []

    def receive() -> None:
        with kombu.Consumer(connection, [queue], on_message=received.append, no_ack=True):
            while not received:
                connection.drain_events(timeout=60)

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    yield received
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def never_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody look again without a reason: what arrives then has woken its consumer."""
    monkeypatch.setattr(claimer, "LADDER_S", (0.02, 3600.0))
    monkeypatch.setattr(claimer, "TAKE_EVERY_S", 3600.0)
    monkeypatch.setattr(upkeep, "PROMOTE_AT_LEAST_EVERY_S", 3600.0)


def is_armed(store: Store, queue: str) -> bool:
    return store.dialect == "sqlite" or any(depth.waiting for depth in store.reads.depths() if depth.name == queue)


@pytest.mark.usefixtures("never_by_itself")
def test_a_message_wakes_the_consumer_that_sleeps_over_its_queue(connect: Connect, store: Store) -> None:
    connection, other = connect(), connect()
    QUEUE(other.default_channel).declare()
    with asleep(connection) as received:
        wait_until(lambda: is_armed(store, "sleepy"))
        publish(other, QUEUE, "wake up")
    assert [message.decode() for message in received] == ["wake up"]


@pytest.mark.usefixtures("never_by_itself")
def test_a_delayed_message_wakes_it_when_it_comes_due(connect: Connect, store: Store) -> None:
    connection, other = connect(), connect()
    QUEUE(other.default_channel).declare()
    soon_ms = store.now_ms() + 500
    eta = datetime.fromtimestamp(soon_ms / 1000, timezone.utc).isoformat()
    with asleep(connection) as received:
        wait_until(lambda: is_armed(store, "sleepy"))
        publish(other, QUEUE, [[], {}, {}], headers={"id": "t1", "task": "a.task", "eta": eta})
    assert store.now_ms() >= soon_ms
    assert received[0].headers["atomic_eta"] == eta


@pytest.mark.usefixtures("never_by_itself")
def test_a_released_message_wakes_another_consumer(connect: Connect, store: Store) -> None:
    connection, other = connect(), connect()
    publish(other, QUEUE, "second hand")
    message = QUEUE(other.default_channel).get()
    with asleep(connection) as received:
        wait_until(lambda: is_armed(store, "sleepy"))
        message.requeue()
    assert [message.decode() for message in received] == ["second hand"]


def test_a_consumer_that_left_is_not_rung_any_more(connect: Connect, store: Store) -> None:
    with connect() as connection, consuming(connection, QUEUE) as inbox:

        def armed() -> bool:
            inbox.drain_for(0.2)
            return is_armed(store, "sleepy")

        wait_until(armed)
    assert not any(depth.waiting for depth in store.reads.depths())


def test_waiting_ends_with_a_timeout_when_nothing_comes(connect: Connect) -> None:
    connection = connect()
    with consuming(connection, QUEUE), pytest.raises(socket.timeout):
        connection.drain_events(timeout=0.3)
