"""A database as the nouns of the store see it: statements run, transactions, deadlines, forks.

A thread uses one pooled connection at a time. Nothing is opened before the first statement.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, PoolProxiedConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from atomic_celery import errors, faults
from atomic_celery.config import Settings
from atomic_celery.store.connection import Answer, Connection, Row
from atomic_celery.store.engine import build_engine, session_of
from atomic_celery.store.failures import translate
from atomic_celery.store.statements import Statement, Statements
from atomic_celery.store.urls import StoreUrl
from atomic_celery.store.watchdog import Watch, Watchdog

_BUSY_TRIES = 5
_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_abandoned: list[Engine] = []  # a parent's: collected in a child, they could end its sessions


class _Mine(threading.local):
    """What the calling thread has in hand."""

    connection: Connection | None = None
    watch: Watch | None = None


class Database:
    """One database and the pool of connections to it."""

    def __init__(self, url: StoreUrl, settings: Settings) -> None:
        self.url, self.settings = url, settings
        self.dialect = url.dialect
        self.statements = Statements(url.dialect, settings.prefix)
        self._now_ms: int | None = None
        self._begin_afresh()
        _databases.add(self)

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
        if self._mine.connection is not None:
            with self._translated():
                return self._mine.connection.run(statement, parameters)
        return self._run_alone(statement, parameters)

    @contextmanager
    def transaction(self, name: str = "transaction") -> Iterator[None]:
        """Run what is inside in one transaction; inside of another, as part of that one.

        Args:
            name: What its crash points are called: ``<name>.committing``, ``<name>.committed``.
        """
        if self._mine.connection is not None:
            yield
            return
        with self._connected() as connection:
            with self._translated():
                connection.begin()
            self._mine.connection = connection
            try:
                yield
                faults.reach(f"{name}.committing")
            except BaseException:
                self._roll_back(connection)
                raise
            finally:
                self._mine.connection = None
            with self._translated():
                connection.commit()
            faults.reach(f"{name}.committed")

    @contextmanager
    def deadline(self, timeout_s: float) -> Iterator[None]:
        """Cut this thread's connection off after *timeout_s*; the nearest deadline counts.

        Raises:
            StoreUnavailable: The time was up: whether the last statement happened is unknown.
        """
        outer, watch = self._mine.watch, Watch(timeout_s)
        if outer is not None and outer.until_s <= watch.until_s:
            yield
            return
        watch.use(self._mine.connection)
        self._watchdog.watch(watch)
        self._mine.watch = watch
        try:
            yield
        finally:
            watch.use(None)
            watch.over = True
            self._mine.watch = outer

    def at(self, now_ms: int | None) -> None:
        """Say what time the database has, for tests; None: its own."""
        self._now_ms = now_ms

    @contextmanager
    def own_connection(self) -> Iterator[Any]:
        """Lend a driver's connection that is in no pool, in autocommit mode, closed at the end."""
        with self._translated():
            pooled = self._check_out()
        pooled.detach()
        try:
            yield pooled.driver_connection
        finally:
            pooled.close()

    def close(self) -> None:
        """Close every connection that is not in use. A later statement opens new ones."""
        self._engine.dispose()

    def forget(self) -> None:
        """Drop every connection without a word to the server, as a forked child must."""
        if self._lazy_engine is not None:
            _abandoned.append(self._lazy_engine)
        self._begin_afresh()

    def _begin_afresh(self) -> None:
        self._mine = _Mine()
        self._watchdog = Watchdog()
        self._lazy_engine: Engine | None = None
        self._building = threading.Lock()

    @property
    def _engine(self) -> Engine:
        if self._lazy_engine is None:
            with self._building:
                if self._lazy_engine is None:
                    self._lazy_engine = build_engine(self.url, self.settings, self.statements, self._remaining_s)
        return self._lazy_engine

    def _remaining_s(self) -> float | None:
        return self._mine.watch.remaining_s if self._mine.watch is not None else None

    def _run_alone(self, statement: Statement, parameters: dict[str, Any]) -> Answer:
        tries_left = _BUSY_TRIES if self.dialect == "postgresql" else 1
        while True:
            tries_left -= 1
            try:
                with self._connected() as connection, self._translated():
                    return self._run_writing(connection, statement, parameters)
            except errors.StoreBusy:
                # A SQLite lock was waited for already; a conflict on PostgreSQL is gone by now.
                if not tries_left:
                    raise

    def _run_writing(self, connection: Connection, statement: Statement, parameters: dict[str, Any]) -> Answer:
        if not statement.writes:
            return connection.run(statement, parameters)
        faults.reach(f"{statement.name}.committing")
        answer = connection.run(statement, parameters)
        faults.reach(f"{statement.name}.committed")
        return answer

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Lend a connection of the pool; one that broke does not go back."""
        with self._translated():
            pooled = self._check_out()
        connection, watch = session_of(pooled), self._mine.watch
        if watch is not None:
            watch.use(connection)
        try:
            yield connection
        except errors.StoreUnavailable:
            pooled.invalidate()
            raise
        finally:
            if watch is not None:
                watch.use(None)
            pooled.close()

    def _check_out(self) -> PoolProxiedConnection:
        """Take a connection out of the pool, or a new one; none that is known to have gone."""
        pooled = self._engine.raw_connection()
        while session_of(pooled).stale():
            pooled.invalidate()
            pooled.close()
            pooled = self._engine.raw_connection()
        return pooled

    def _roll_back(self, connection: Connection) -> None:
        """Undo, or break the connection so that the server undoes it."""
        try:
            connection.rollback()
        except Exception as error:
            raise translate(error) from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        watch = self._mine.watch
        if watch is not None and watch.expired:
            raise errors.StoreUnavailable(_too_late(watch))
        try:
            yield
        except errors.AtomicError:
            raise
        except PoolTimeout as error:
            raise errors.StoreBusy(f"every connection of the pool is in use: {error}") from error
        except Exception as error:
            if watch is not None and watch.expired:
                raise errors.StoreUnavailable(_too_late(watch)) from error
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise translate(cause if isinstance(cause, Exception) else error) from error


class Noun:
    """A noun's verbs are built on this: the statements of ``sql/<dialect>/<noun>.sql`` by name."""

    noun: str

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statements = database.statements.of(self.noun)

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


def _too_late(watch: Watch) -> str:
    return f"no answer from the database within {watch.timeout_s:g} s"


def _forget_all() -> None:
    for database in list(_databases):
        database.forget()


os.register_at_fork(after_in_child=_forget_all)
