"""On an event loop: the loop's thread never talks to the database to claim or to settle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import kombu
import pytest
from kombu.asynchronous import Hub

from atomic_celery import errors
from atomic_celery.store import Store
from atomic_celery.store.messages import Messages
from tests.support.waiting import wait_until
from tests.transport.conftest import Connect
from tests.transport.inbox import publish

QUEUE = kombu.Queue("loop", routing_key="loop")


class Looping:
    """A connection on a hub that this thread turns."""

    def __init__(self, connection: kombu.Connection) -> None:
        self.connection, self.hub = connection, Hub()
        self.messages: list[Any] = []
        connection.transport.register_with_event_loop(connection.connection, self.hub)
        self._turns = self.hub.create_loop()

    def turn_until(self, predicate: Any) -> None:
        def turned() -> bool:
            self.hub.call_soon(lambda: None)  # so that no turn blocks
            next(self._turns)
            return bool(predicate())

        wait_until(turned, 60, lambda: f"received {self.messages}")


@pytest.fixture
def looping(connect: Connect) -> Iterator[Looping]:
    with ExitStack() as closing:
        looping = Looping(connect())
        closing.callback(looping.hub.close)
        consumer = kombu.Consumer(looping.connection, [QUEUE], on_message=looping.messages.append)
        consumer.qos(prefetch_count=3)
        consumer.consume()
        yield looping


def test_messages_come_through_the_loop_within_the_prefetch_count(
    looping: Looping, connect: Connect, store: Store
) -> None:
    publish(connect(), QUEUE, *range(5))
    looping.turn_until(lambda: len(looping.messages) == 3)
    assert sorted(view.state for view in store.reads.messages()) == ["ready"] * 2 + ["running"] * 3
    for message in looping.messages[:]:
        message.ack()
    looping.turn_until(lambda: len(looping.messages) == 5)
    for message in looping.messages[3:]:
        message.ack()
    wait_until(lambda: store.reads.messages() == [])


def test_the_loops_thread_neither_claims_nor_settles(
    looping: Looping, connect: Connect, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    for verb in ("turn", "claim", "take", "release", "promote", "reclaim"):
        real = getattr(Messages, verb)

        def spy(self: Messages, *args: Any, real: Any = real, **options: Any) -> Any:
            seen.add(threading.current_thread().name)
            return real(self, *args, **options)

        monkeypatch.setattr(Messages, verb, spy)
    publish(connect(), QUEUE, "a", "b", "c")
    looping.turn_until(lambda: len(looping.messages) == 3)
    for message, ending in zip(looping.messages[:], ("ack", "requeue", "reject"), strict=True):
        getattr(message, ending)()
    looping.turn_until(lambda: len(looping.messages) == 4)
    assert seen == {"atomic-claims"}


def test_settlements_wait_for_a_database_that_is_away(
    looping: Looping, connect: Connect, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(connect(), QUEUE, "a")
    looping.turn_until(lambda: looping.messages)
    with monkeypatch.context() as broken:
        failures: list[float] = []

        def away(self: Messages, *args: Any) -> Any:
            failures.append(1)
            raise errors.StoreUnavailable("away")

        broken.setattr(Messages, "turn", away)
        looping.messages[0].ack()
        wait_until(lambda: failures)
    wait_until(lambda: store.reads.messages() == [])


def test_a_failing_callback_costs_the_others_nothing(looping: Looping, connect: Connect) -> None:
    class Stumbles(list[Any]):
        def append(self, message: Any) -> None:
            super().append(message)
            if len(self) == 1:
                raise errors.StoreUnavailable("on purpose")

    looping.hub.propagate_errors = ()
    received = Stumbles()
    looping.connection.transport._callbacks["loop"] = received.append
    publish(connect(), QUEUE, *range(3))
    with pytest.raises(errors.StoreUnavailable):
        looping.turn_until(lambda: len(received) == 3)
    looping._turns = looping.hub.create_loop()
    looping.turn_until(lambda: len(received) == 3)


def test_closing_ends_the_thread_and_gives_everything_back(looping: Looping, connect: Connect, store: Store) -> None:
    publish(connect(), QUEUE, *range(3))
    looping.turn_until(lambda: len(looping.messages) == 3)
    looping.connection.close()
    assert [view.state for view in store.reads.messages()] == ["ready"] * 3
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "atomic-claims"])


def test_connecting_anew_on_the_same_loop_works(looping: Looping, connect: Connect) -> None:
    publish(connect(), QUEUE, "once")
    looping.turn_until(lambda: looping.messages)
    looping.connection.close()
    again = Looping(connect())
    consumer = kombu.Consumer(again.connection, [QUEUE], on_message=again.messages.append)
    consumer.consume()
    again.turn_until(lambda: again.messages)
    assert again.messages[0].properties["atomic"]["fence"] == 2
    again.hub.close()
