"""Whom an application may bring along: which of its connections and sessions become guests, and how."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import PoolProxiedConnection

from atomic_celery.store import guests
from atomic_celery.store.guests import DriverGuest, Guest
from atomic_celery.store.sqlalchemy_guests import ConnectionGuest, SessionGuest


def guest_of(connection: Any) -> Guest:
    """Make a guest of a session or connection of SQLAlchemy, or of a driver's connection.

    Raises:
        ConfigError: It is none of these, or of a database or driver that cannot be joined.
    """
    if isinstance(connection, scoped_session):
        connection = connection()
    if isinstance(connection, Session):
        return SessionGuest(connection)
    if isinstance(connection, Connection):
        return ConnectionGuest(connection)
    if isinstance(connection, PoolProxiedConnection):
        connection = connection.driver_connection
    return DriverGuest(connection)


def is_asynchronous(connection: Any) -> bool:
    """Whether it can be used from coroutines only."""
    # Whoever has one has imported this; others may lack what it needs.
    module = sys.modules.get("sqlalchemy.ext.asyncio")
    return module is not None and isinstance(
        connection, module.AsyncSession | module.AsyncConnection | module.async_scoped_session
    )


class AsyncHost:
    """An asynchronous session or connection, on which work of ours runs when it is awaited."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection() if callable(connection) else connection  # a scoped session's own

    async def begin(self) -> None:
        """Let it begin a transaction, if it has none."""
        await self._connection.run_sync(lambda sync: guest_of(sync).scope())

    def scope(self) -> tuple[object, object]:
        """Return what is another value in another transaction or savepoint."""
        return self._connection.get_transaction(), self._connection.get_nested_transaction()

    async def run(self, work: Callable[[], None]) -> None:
        """Do *work* as this connection's guest."""

        def as_guest(sync: Any) -> None:
            with guests.invited(guest_of(sync)):
                work()

        await self._connection.run_sync(as_guest)
