"""SQLAlchemy's engine, used for what it is good at: URL, driver, pool, and credentials that rotate.

The hot path does not go through it: statements run on the driver's own cursors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import sqlalchemy
from sqlalchemy import Engine, event

from atomic_celery.config import Settings
from atomic_celery.store import credentials
from atomic_celery.store.connection import Connection, PostgresConnection, SqliteConnection
from atomic_celery.store.statements import Statement, Statements
from atomic_celery.store.urls import StoreUrl
from atomic_celery.store.watchdog import Watch

logger = logging.getLogger(__name__)

_POOL_SIZE, _POOL_OVERFLOW = 5, 59  # what is kept open, and what a burst of threads may add
_KEY = "atomic"
# Statements are prepared once, maybe on empty tables: their plans must be right for any size.
_PLANS = "SET plan_cache_mode = force_generic_plan;SET enable_seqscan = off;SET jit = off"
_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", "temp_store = MEMORY")


def build_engine(
    url: StoreUrl,
    settings: Settings,
    statements: Statements,
    current_watch: Callable[[], Watch | None],
) -> Engine:
    """Build an engine; nothing is opened yet.

    Args:
        url: The database.
        settings: Bounds in time, and whether a session is ours.
        statements: What to run on a new connection.
        current_watch: The deadline under which the calling thread opens a connection.

    Raises:
        ConfigError: The driver is not installed, or the credentials contradict each other.
    """
    url.require_driver()
    engine = sqlalchemy.create_engine(
        url.sqlalchemy_url(),
        connect_args=_connect_arguments(url, settings),
        pool_size=_POOL_SIZE,
        max_overflow=_POOL_OVERFLOW,
        pool_timeout=settings.statement_timeout_s,
        pool_use_lifo=True,
        pool_reset_on_return=None,
        **({"use_native_hstore": False} if url.dialect == "postgresql" else {}),
    )
    if url.dialect == "postgresql":
        _bound_connecting(engine, settings, current_watch)
        credentials.present(credentials.choose(url, settings), engine)
        event.listen(engine, "connect", _postgres_opener(settings, current_watch))
    else:
        event.listen(engine, "connect", _sqlite_opener(statements.of("session")["open"]))
    return engine


def session_of(pooled: Any) -> Connection:
    """Return our view of a connection that the pool handed out."""
    session: Connection = pooled.info[_KEY]
    return session


def _connect_arguments(url: StoreUrl, settings: Settings) -> dict[str, Any]:
    if url.dialect == "sqlite":
        credentials.choose(url, settings)
        return {
            "isolation_level": None,
            "check_same_thread": False,
            "timeout": settings.statement_timeout_s,
            "cached_statements": 512,
        }
    arguments: dict[str, Any] = url.connect_parameters(settings.connect_timeout_s)
    if url.driver == "psycopg":
        from psycopg import ClientCursor

        # Several statements in one message and PREPARE by name need values put in on our side.
        arguments |= {"cursor_factory": ClientCursor, "autocommit": True, "prepare_threshold": None}
    return arguments


def _bound_connecting(engine: Engine, settings: Settings, current_watch: Callable[[], Watch | None]) -> None:
    @event.listens_for(engine, "do_connect")
    def bound(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        watch = current_watch()
        if watch is not None and watch.remaining_s < settings.connect_timeout_s:
            parameters["connect_timeout"] = str(max(2, int(watch.remaining_s)))  # libpq knows no less than 2


def _postgres_opener(settings: Settings, current_watch: Callable[[], Watch | None]) -> Callable[[Any, Any], None]:
    begin = "BEGIN;" if settings.notify else f"BEGIN;{_limits(settings, 'SET LOCAL')}"

    def open_session(driver: Any, record: Any) -> None:
        driver.autocommit = True
        session = PostgresConnection(driver, prepares=settings.notify, begin=begin)
        if (watch := current_watch()) is not None:
            watch.use(session)
        if settings.notify:
            with driver.cursor() as cursor:
                cursor.execute(_limits(settings, "SET") + _PLANS)
        record.info[_KEY] = session

    return open_session


def _sqlite_opener(scratch: Statement) -> Callable[[Any, Any], None]:
    def open_session(driver: Any, record: Any) -> None:
        driver.isolation_level = None
        for pragma in _PRAGMAS:
            driver.execute(f"PRAGMA {pragma}").close()
        for part in scratch.parts:
            driver.execute(part).close()
        record.info[_KEY] = SqliteConnection(driver)

    return open_session


def _limits(settings: Settings, how: str) -> str:
    """Return what bounds a session's waits: a frozen holder must not keep locks for as long as a lease."""
    statement_ms = round(settings.statement_timeout_s * 1000)
    limits = {
        "idle_in_transaction_session_timeout": round(settings.lease_s * 1000 / 3),
        "statement_timeout": statement_ms,
        "lock_timeout": statement_ms,
    }
    return "".join(f"{how} {name} = {value};" for name, value in limits.items())
