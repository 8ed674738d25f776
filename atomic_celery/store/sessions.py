"""What a new connection begins with: limits, plans, scratch tables. SETs and PRAGMAs stand here only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from atomic_celery import clock, errors
from atomic_celery.config import Settings
from atomic_celery.store.connection import Connection, PostgresConnection, SqliteConnection
from atomic_celery.store.failures import translate
from atomic_celery.store.statements import Statement
from atomic_celery.store.watchdog import Watch, Watchdog

if TYPE_CHECKING:
    import sqlite3

# Statements are prepared once, maybe on empty tables: their plans must be right for any size.
_PLANS = "SET plan_cache_mode = force_generic_plan;SET enable_seqscan = off;SET jit = off"
_LENT_PLANS = "SET LOCAL jit = off;"  # compiling takes seconds where an estimate is high, and the answer milliseconds
_PRAGMAS = ("synchronous = FULL", "temp_store = MEMORY")
_TRY_AGAIN_AFTER_S = 0.02


class Sessions(Protocol):
    """How sessions of one database begin."""

    def open(self, driver: Any, watch: Watch | None) -> Connection:
        """Set a driver's new connection up, under the deadline that is looked after by *watch*."""
        ...


class PostgresSessions:
    """Sessions that are ours, or behind a pooler lent for a transaction at a time."""

    def __init__(self, settings: Settings, watchdog: Watchdog) -> None:
        self._ours, self._watchdog = settings.notify, watchdog
        # The server has its own limit; ours is for the server that does not keep it any more.
        self._answer_within_s = settings.statement_timeout_s + settings.connect_timeout_s
        self._setup = _limits(settings, "SET") + _PLANS
        self._begin = "BEGIN;" if self._ours else f"BEGIN;{_limits(settings, 'SET LOCAL')}{_LENT_PLANS}"

    def open(self, driver: Any, watch: Watch | None) -> Connection:
        """Bound its waits; behind a pooler, that is left to each transaction."""
        driver.autocommit = True
        session = PostgresConnection(
            driver,
            prepares=self._ours,
            begin=self._begin,
            watchdog=self._watchdog,
            answer_within_s=self._answer_within_s,
        )
        if watch is not None:
            watch.use(session)
        if self._ours:
            session.send(self._setup)
        return session


class SqliteSessions:
    """Sessions on a file, with tables of their own to keep things in between two statements."""

    def __init__(self, scratch: Statement) -> None:
        self._scratch = scratch

    def open(self, driver: sqlite3.Connection, watch: Watch | None) -> Connection:
        """Make every commit durable, and readers no hindrance to the writer."""
        driver.isolation_level = None
        session = SqliteConnection(driver)
        if watch is not None:
            session.be_patient(watch.remaining_s)
        _keep_writes_ahead(driver)
        for pragma in _PRAGMAS:
            driver.execute(f"PRAGMA {pragma}").close()
        for part in self._scratch.parts:
            driver.execute(part).close()
        return session


def _keep_writes_ahead(driver: sqlite3.Connection) -> None:
    """Give the file a write-ahead log; one that others use without is waited for: SQLite itself does not wait here."""
    (patience_ms,) = driver.execute("PRAGMA busy_timeout").fetchone()
    give_up_at_s = clock.monotonic_s() + patience_ms / 1000
    while True:
        try:
            driver.execute("PRAGMA journal_mode = WAL").close()
            return
        except Exception as error:
            if not isinstance(translate(error), errors.StoreBusy) or clock.monotonic_s() >= give_up_at_s:
                raise
        clock.pause(_TRY_AGAIN_AFTER_S)


def _limits(settings: Settings, how: str) -> str:
    """Return what bounds a session's waits: a frozen holder must not keep locks for as long as a lease."""
    statement_ms = round(settings.statement_timeout_s * 1000)
    limits = {
        "idle_in_transaction_session_timeout": round(settings.lease_s * 1000 / 3),
        "statement_timeout": statement_ms,
        "lock_timeout": statement_ms,
    }
    return "".join(f"{how} {name} = {value};" for name, value in limits.items())
