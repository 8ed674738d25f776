"""A database as the nouns of the store see it: statements by name, transactions, deadlines.

A thread uses one connection at a time: the one of its transaction, or any for a single statement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

from atomic_celery import errors, faults
from atomic_celery.config import Settings
from atomic_celery.store import guests
from atomic_celery.store.connection import Answer, Connection, Row
from atomic_celery.store.failures import is_conflict
from atomic_celery.store.guests import Guest
from atomic_celery.store.pool import Pool
from atomic_celery.store.statements import Statement, Statements
from atomic_celery.store.urls import StoreUrl
from atomic_celery.store.watchdog import Watch

_CONFLICT_TRIES = 5


class _Host(NamedTuple):
    database: Database
    guest: Guest


# No thread's, as the rest is: an asynchronous guest lets other tasks of the thread run while it waits.
_host: ContextVar[_Host | None] = ContextVar("atomic_host", default=None)


class Database:
    """One database."""

    def __init__(self, url: StoreUrl, settings: Settings) -> None:
        self.url, self.settings = url, settings
        self.dialect = url.dialect
        self.statements = Statements(url.dialect, settings.prefix)
        self._pool = Pool(url, settings, self.statements)
        self._now_ms: int | None = None
        self.find_guest: Callable[[], Guest | None] = guests.current
        self.prefers_own: Callable[[], bool] = lambda: False

    def run(self, statement: Statement, /, **parameters: Any) -> Answer:
        """Run one block of statements; a list or tuple goes in as JSON text.

        Atomicity: joins this thread's transaction; without one it is a transaction of its own,
        tried again when the database undid it for a conflict.

        Raises:
            StoreUnavailable: No connection, or no answer: whether it happened is unknown.
            StoreBusy: It did not happen.
        """
        for name, value in parameters.items():
            if isinstance(value, list | tuple):
                parameters[name] = json.dumps(value)
        parameters["now_ms"] = self._now_ms
        host = _host.get()
        if host is not None and host.database is self:
            return host.guest.run(statement, parameters)
        connection = self._pool.mine.connection
        if connection is None:
            return self._run_alone(statement, parameters)
        with self._pool.translating():
            return connection.run(statement, parameters)

    @contextmanager
    def transaction(self, name: str = "transaction") -> Iterator[None]:
        """Run what is inside in one transaction; inside of another, as part of that one.

        Args:
            name: What its crash points are called: ``<name>.committing``, ``<name>.committed``.

        Raises:
            StoreUnavailable: The connection was lost; at its end, whether it was committed is unknown.
        """
        mine = self._pool.mine
        if mine.connection is not None or self._is_hosting:
            yield
            return
        with self._pool.lend() as connection:
            with self._pool.translating():
                connection.begin()
            mine.connection = connection
            try:
                yield
                faults.reach(f"{name}.committing")
            except BaseException:
                if mine is self._pool.mine:
                    connection.give_up()
                raise
            finally:
                mine.connection = None
            if mine is not self._pool.mine:
                raise errors.StoreUnavailable("this transaction is the parent's: it was open at the fork")
            with self._pool.translating():
                connection.commit()
            faults.reach(f"{name}.committed")

    @contextmanager
    def deadline(self, timeout_s: float) -> Iterator[None]:
        """Cut this thread's connection off after *timeout_s*; the nearest deadline counts.

        Raises:
            StoreUnavailable: The time was up: whether the last statement happened is unknown.
        """
        mine, watch = self._pool.mine, Watch().start(timeout_s)
        outer = mine.watch
        if outer is not None and outer.until_s <= watch.until_s:
            yield
            return
        watch.use(mine.connection)
        self._pool.watchdog.watch(watch)
        mine.watch = watch
        try:
            yield
        finally:
            watch.finish()
            mine.watch = outer

    def guest(self) -> Guest | None:
        """Return the application's connection that publishing joins here; None: nobody's, or joined already.

        Raises:
            ConfigError: It is one to another kind of database.
        """
        if self.in_transaction:
            return None
        guest = self.find_guest()
        if guest is None or (not guest.in_transaction and self.prefers_own()):
            return None
        if guest.dialect != self.dialect:
            raise errors.ConfigError(f"publishing_in() got a {guest.dialect} connection, but the broker is {self.url}")
        return guest

    @property
    def in_transaction(self) -> bool:
        """Whether what is written here now may still be undone."""
        return self._pool.mine.connection is not None or self._is_hosting

    def commits_at_once(self, guest: Guest | None) -> bool:
        """Whether what is run here, or by a guest, is committed at once, by a server whose answer may get lost."""
        in_transaction = self._pool.mine.connection is not None if guest is None else guest.in_transaction
        return self.dialect == "postgresql" and not in_transaction and (guest is not None or not self._is_hosting)

    @property
    def can_wake(self) -> bool:
        """Whether a sleeping consumer is woken by being told; else it sees each commit, or looks now and then."""
        return self.dialect == "postgresql" and self.settings.notify

    @contextmanager
    def hosting(self, guest: Guest) -> Iterator[None]:
        """Run what is inside on the connection of *guest*, in its transaction."""
        token = _host.set(_Host(self, guest))
        try:
            yield
        finally:
            _host.reset(token)

    @property
    def _is_hosting(self) -> bool:
        host = _host.get()
        return host is not None and host.database is self

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Run statements where a guest is at home, if one is here: they see what its transaction has done."""
        guest = self.guest()
        if guest is None or not guest.is_home:
            yield
            return
        with self.hosting(guest):
            yield

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """Run statements `at_home`, but under a deadline only if a transaction is open there.

        A guest's connection is not ours to cut off: who waits for no longer than so long must not wait for it.
        """
        guest = self.guest()
        elsewhere = self._pool.mine.watch is not None and guest is not None and not guest.in_transaction
        with nullcontext() if elsewhere else self.at_home():
            yield

    @contextmanager
    def apart(self) -> Iterator[bool]:
        """Run statements that are to outlast a rollback of the guest's transaction; yield whether they surely do."""
        guest = self.guest()
        if guest is None or not guest.is_home:
            yield not self.in_transaction
            return
        with guest.apart() as other, self.hosting(other):
            yield not other.in_transaction

    def at(self, now_ms: int | None) -> None:
        """Say what time the database has, for tests; None: its own."""
        self._now_ms = now_ms

    @contextmanager
    def own_connection(self) -> Iterator[Any]:
        """Lend a driver's connection that is in no pool, in autocommit mode, closed at the end."""
        mine = self._pool.mine
        with self.undisturbed(), self._pool.translating():
            pooled = self._pool.take()
        driver = pooled.driver_connection  # once detached, it is not told any more
        pooled.detach()
        try:
            yield driver
        finally:
            with self.undisturbed():
                self._pool.give_back(pooled, mine)

    def undisturbed(self) -> AbstractContextManager[None]:
        """Let no other thread fork while a ``with`` block lasts in which such a connection is used."""
        return self._pool.undisturbed()

    def close(self) -> None:
        """Close every connection that is not in use. A later statement opens new ones."""
        self._pool.close()

    def forget(self) -> None:
        """Drop every connection without a word to the server, as a forked child must."""
        self._pool.forget()

    def _run_alone(self, statement: Statement, parameters: dict[str, Any]) -> Answer:
        tries_left = _CONFLICT_TRIES
        while True:
            tries_left -= 1
            try:
                with self._pool.lend() as connection, self._pool.translating():
                    return _run_writing(connection, statement, parameters)
            except errors.StoreBusy as busy:
                if not tries_left or not is_conflict(busy.__cause__):
                    raise


class Noun:
    """A noun's verbs are built on this: the statements of ``sql/<dialect>/<noun>.sql`` by name."""

    noun: str

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statements = database.statements.of(self.noun)

    def _joining(self) -> AbstractContextManager[None]:
        """Run statements on the connection of a guest, if one is here."""
        guest = self._database.guest()
        return nullcontext() if guest is None else self._database.hosting(guest)

    def _exec(self, name: str, /, **parameters: Any) -> int:
        """Run a statement; return how many rows it touched."""
        return self._database.run(self._statements[name], **parameters).touched

    def _one(self, name: str, /, **parameters: Any) -> Row | None:
        """Run a statement; return its first row, if any."""
        rows = self._database.run(self._statements[name], **parameters).rows
        return rows[0] if rows else None

    def _many(self, name: str, /, **parameters: Any) -> list[Row]:
        """Run a statement; return its rows."""
        return self._database.run(self._statements[name], **parameters).rows


def _run_writing(connection: Connection, statement: Statement, parameters: dict[str, Any]) -> Answer:
    if not statement.writes:
        return connection.run(statement, parameters)
    faults.reach(f"{statement.name}.committing")
    answer = connection.run(statement, parameters)
    faults.reach(f"{statement.name}.committed")
    return answer
