"""kombu's transport: one connection to one database."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any

from amqp.exceptions import RecoverableConnectionError
from kombu.transport import virtual
from kombu.transport.base import Transport as BaseTransport

from atomic_celery import errors
from atomic_celery.transport import address, broker
from atomic_celery.transport.broker import Broker
from atomic_celery.transport.channel import Channel
from atomic_celery.transport.codec import RawMessage
from atomic_celery.transport.intake import Intake

if TYPE_CHECKING:
    from kombu import Connection

_left_to_parent: list[Any] = []  # collected in a forked child, their sockets would say goodbye to the server


class Transport(virtual.Transport):
    """A connection as kombu sees it. Publishing is safe from any thread, and after a fork."""

    Channel = Channel
    can_parse_url = True
    driver_type = "atomic"
    driver_name = "atomic_celery"
    polling_interval = None
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        batch_publish=True,
        exchange_type=frozenset({"direct", "topic", "fanout"}),
    )

    # A database that is busy is still there: connecting anew would not help, trying again may.
    connection_errors = (*BaseTransport.connection_errors, errors.StoreUnavailable, RecoverableConnectionError)
    recoverable_connection_errors = (errors.StoreUnavailable, RecoverableConnectionError)
    channel_errors = (*BaseTransport.channel_errors, errors.StoreBusy)
    recoverable_channel_errors = (errors.StoreBusy,)

    def __init__(self, client: Connection, **options: Any) -> None:
        super().__init__(client, **options)
        self.client: Connection
        self._callbacks: dict[str, Callable[[RawMessage], Any]] = {}
        self._avail_channels: list[Channel]
        self._pid = os.getpid()
        self._broker: Broker | None = None
        self._intake: Intake | None = None

    @property
    def broker(self) -> Broker:
        """The database, shared with this process's other connections to it."""
        if self._broker is None:
            self._broker = broker.borrow(self.client)
        return self._broker

    @property
    def intake(self) -> Intake:
        """What this connection consumes."""
        if self._intake is None:
            self._intake = Intake(self.broker, self._call_back)
        return self._intake

    def establish_connection(self) -> Any:
        """Make sure of the database, and return what kombu calls the connection: this very object."""
        self.broker.connect()
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Close the channels, give back what they hold, and let go of the database."""
        super().close_connection(connection)
        if self._intake is not None:
            self._intake.close()
        if self._broker is not None:
            broker.give_back(self._broker)
        self._intake = self._broker = None

    def verify_connection(self, connection: Any) -> bool:  # noqa: ARG002
        """Whether this connection is open; asked so often that the database is not."""
        return self._broker is not None and self._pid == os.getpid()

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:  # noqa: ARG002
        """Deliver what there is; wait for it if there is nothing.

        Raises:
            socket.timeout: Nothing came in time.
        """
        self.intake.drain(timeout)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:  # noqa: ARG002
        """Deliver through *loop* from now on; claim and settle on a thread."""
        self.intake.attach(loop)

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:  # noqa: ARG002
        """Return the URL for people to read."""
        return address.shown(self.client, reveal=include_password)

    def driver_version(self) -> str:
        """Return the version of this package."""
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version("atomic_celery")
        return "N/A"

    def _call_back(self, message: RawMessage, queue: str) -> None:
        self._callbacks[queue](message)

    def _collect(self, connection: Any) -> None:
        """Let go without a word to the server, if it is a parent's connection; else close it."""
        if self._pid != os.getpid():
            _left_to_parent.append((self._intake, self.channels, self._avail_channels))
            self._intake = self._broker = None
        elif connection is not None:
            with contextlib.suppress(*self.connection_errors, *self.channel_errors):
                self.close_connection(connection)
