"""A consumer that remembers what it was given."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kombu

from tests.support.waiting import wait_until


class Inbox:
    """What a consumer has received, in order."""

    def __init__(self, connection: kombu.Connection) -> None:
        self.connection = connection
        self.messages: list[Any] = []

    @property
    def bodies(self) -> list[Any]:
        """What the messages said."""
        return [message.decode() for message in self.messages]

    def drain(self) -> None:
        """Receive what is there now."""
        with contextlib.suppress(socket.timeout):
            while True:
                self.connection.drain_events(timeout=0)

    def drain_for(self, timeout_s: float) -> None:
        """Receive what comes within *timeout_s*, asleep in between."""
        with contextlib.suppress(socket.timeout):
            self.connection.drain_events(timeout=timeout_s)

    def wait(self, count: int, deadline_s: float = 60.0) -> list[Any]:
        """Receive until there are *count* messages in all; return what they say."""

        def received() -> bool:
            if len(self.messages) < count:
                self.drain_for(0.2)
            return len(self.messages) >= count

        wait_until(received, deadline_s, lambda: f"received {self.bodies}")
        return self.bodies


@contextmanager
def consuming(
    connection: kombu.Connection, *queues: kombu.Queue, prefetch: int = 0, channel: Any = None, **options: Any
) -> Iterator[Inbox]:
    """Consume *queues* until the block ends."""
    inbox = Inbox(connection)
    consumer = kombu.Consumer(channel or connection, list(queues), on_message=inbox.messages.append, **options)
    consumer.qos(prefetch_count=prefetch)
    with consumer:
        yield inbox


def publish(connection: kombu.Connection, queue: kombu.Queue, *bodies: Any, **options: Any) -> None:
    """Publish *bodies* straight to *queue*, which is declared."""
    producer = kombu.Producer(connection)
    for body in bodies:
        producer.publish(body, routing_key=queue.name, declare=[queue], **options)
