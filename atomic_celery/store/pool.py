"""The pool of connections to one database, lent one at a time, and what a driver's errors become.

Nothing is opened before it is needed. What a fork inherits is neither used nor closed in the child.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import PoolProxiedConnection

from atomic_celery import errors
from atomic_celery.config import Settings
from atomic_celery.store import forking
from atomic_celery.store.connection import Connection
from atomic_celery.store.database_file import DatabaseFile
from atomic_celery.store.engine import build_engine, session_of
from atomic_celery.store.failures import translate
from atomic_celery.store.sessions import PostgresSessions, Sessions, SqliteSessions
from atomic_celery.store.statements import Statements
from atomic_celery.store.urls import StoreUrl
from atomic_celery.store.watchdog import Watch, Watchdog

_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_abandoned: list[object] = []  # a parent's: collected in a child, they could end its sessions


class _Mine(threading.local):
    """What the calling thread has in hand."""

    connection: Connection | None = None
    """Where its transaction is open."""
    watch: Watch | None = None


class Pool:
    """Connections to one database."""

    def __init__(self, url: StoreUrl, settings: Settings, statements: Statements) -> None:
        self._url, self._settings, self._statements = url, settings, statements
        self.patience_s = settings.statement_timeout_s
        self._file = None if url.path is None else DatabaseFile(url.path)
        self._begin_afresh()
        _pools.add(self)

    def take(self) -> PoolProxiedConnection:
        """Take a connection out, or a new one; none that is known to have gone. `close` gives it back."""
        if self._file is not None:
            self._file.require_now_and_then()
        pooled = self._engine.raw_connection()
        while session_of(pooled).stale():
            pooled.invalidate()
            pooled.close()
            pooled = self._engine.raw_connection()
        return pooled

    def give_back(self, pooled: PoolProxiedConnection, mine: _Mine, *, broken: bool = False) -> None:
        """Put a connection back that was taken while *mine* was ours; not if that was before a fork."""
        if mine is not self.mine:
            _abandoned.append(pooled)
            return
        if broken:
            pooled.invalidate()
        pooled.close()

    def lend(self) -> Loan:
        """Lend a connection for as long as a ``with`` block lasts."""
        return Loan(self)

    def undisturbed(self) -> AbstractContextManager[None]:
        """Let no other thread fork while a ``with`` block lasts, if a connection in use would be a hindrance to it."""
        return forking.undisturbed() if self._url.dialect == "sqlite" else nullcontext()

    def translating(self) -> Translating:
        """Make a driver's errors our own while a ``with`` block lasts."""
        return Translating(self.mine.watch)

    def close(self) -> None:
        """Close every connection that is not in use. A later use opens new ones."""
        if self._lazy_engine is not None:
            with self.undisturbed():
                self._lazy_engine.dispose()

    def forget(self) -> None:
        """Drop every connection without a word to the server, as a forked child must."""
        if self._lazy_engine is not None:
            _abandoned.append(self._lazy_engine)
        self._begin_afresh()

    def _begin_afresh(self) -> None:
        self.mine = _Mine()
        self.watchdog = Watchdog()
        self._lazy_engine: Engine | None = None
        self._building = threading.Lock()

    @property
    def _engine(self) -> Engine:
        if self._lazy_engine is None:
            with self._building:
                if self._lazy_engine is None:
                    self._lazy_engine = build_engine(
                        self._url, self._settings, self._sessions(), lambda: self.mine.watch, self._file
                    )
        return self._lazy_engine

    def _sessions(self) -> Sessions:
        if self._url.dialect == "postgresql":
            return PostgresSessions(self._settings, self.watchdog)
        return SqliteSessions(self._statements.of("session")["open"])


class Translating:
    """A ``with`` block in which a driver's errors become ours, and a deadline that is over refuses to begin."""

    __slots__ = ("_watch",)

    def __init__(self, watch: Watch | None) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        if self._watch is not None and self._watch.expired:
            raise self._watch.too_late()

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, errors.AtomicError):
            return
        if self._watch is not None and self._watch.expired:
            raise self._watch.too_late() from error
        if isinstance(error, PoolTimeout):
            raise errors.StoreBusy(f"every connection of the pool is in use: {error}") from error
        if isinstance(error, DBAPIError) and isinstance(error.orig, Exception):
            error = error.orig
        raise translate(error) from error


class Loan:
    """A ``with`` block that has a connection. One that broke, or may be half-way through an answer, is discarded."""

    __slots__ = ("_mine", "_pool", "_pooled", "_undisturbed")

    def __init__(self, pool: Pool) -> None:
        self._pool, self._mine = pool, pool.mine
        self._undisturbed = pool.undisturbed()

    def __enter__(self) -> Connection:
        watch = self._mine.watch
        with ExitStack() as opening:
            opening.enter_context(self._undisturbed)
            with Translating(watch):
                self._pooled = self._pool.take()
            connection = session_of(self._pooled)
            if watch is not None:
                watch.use(connection)
                connection.be_patient(watch.remaining_s)
            opening.pop_all()
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._give_back(error)
        finally:
            self._undisturbed.__exit__(kind, error, trace)

    def _give_back(self, error: BaseException | None) -> None:
        if self._mine.watch is not None:
            self._mine.watch.use(None)
            session_of(self._pooled).be_patient(self._pool.patience_s)
        broken = isinstance(error, errors.StoreUnavailable) or not isinstance(error, Exception | None)
        self._pool.give_back(self._pooled, self._mine, broken=broken)


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_forget_all)
