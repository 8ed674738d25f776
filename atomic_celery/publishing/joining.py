"""Publishing in the application's own transaction: SQLAlchemy's, or a driver's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from types import TracebackType
from typing import Any

from atomic_celery import errors, mailbag
from atomic_celery.mailbag import Mailbag
from atomic_celery.store import NewMessage, Store, guests
from atomic_celery.store.joining import AsyncHost, guest_of, is_asynchronous


class publishing_in:  # noqa: N801
    """A block in which tasks are sent through the transaction of *connection*.

        with Session(engine) as session, session.begin():
            session.add(order)
            with atomic_celery.publishing_in(session):
                charge.delay(order.id)

    The message exists if and only if that transaction commits; a savepoint that is rolled back takes the messages sent
    in it along. Workers are woken after the commit. Nothing is committed here, and an error is the driver's own.

    Only what this context sends is joined: other threads and other tasks of an event loop send as they always do.
    Broadcasts, such as ``app.control.revoke()``, go out at once.

    Of an asynchronous session or connection the block is ``async with``; what is sent in it is stored as it ends.

    Args:
        connection: A session or connection of SQLAlchemy, synchronous or not, or a connection of psycopg2, psycopg or
            sqlite3; to the database that is the broker.

    Raises:
        ConfigError: It is something else, or to another kind of database than the broker.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._block: AbstractContextManager[None]
        self._async_block: AbstractAsyncContextManager[None]

    def __enter__(self) -> None:
        if is_asynchronous(self._connection):
            raise errors.ConfigError("an asynchronous session or connection takes: async with publishing_in(…)")
        self._block = guests.invited(guest_of(self._connection))
        self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, trace)

    async def __aenter__(self) -> None:
        if not is_asynchronous(self._connection):
            raise errors.ConfigError("a session or connection that is not asynchronous takes: with publishing_in(…)")
        self._async_block = _collecting_for(AsyncHost(self._connection))
        await self._async_block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._async_block.__aexit__(kind, error, trace)


class _StrictMailbag(Mailbag):
    """A bag for one transaction: it cannot let messages go by it, because only a coroutine could store them."""

    def add(self, store: Store, new: Sequence[NewMessage]) -> bool:
        """Take messages.

        Raises:
            AtomicError: Another transaction or savepoint than the one the block began in is open by now.
        """
        taken = super().add(store, new)
        if not taken and not self.closed:
            raise errors.AtomicError(
                "the transaction or savepoint changed within this block; "
                "open publishing_in() inside of each that sends tasks"
            )
        return taken


@asynccontextmanager
async def _collecting_for(host: AsyncHost) -> AsyncIterator[None]:
    await host.begin()
    with mailbag.collecting(_StrictMailbag(scope=host.scope)) as bag:
        yield
    if any(bag.waiting.values()):
        await host.run(bag.empty)
