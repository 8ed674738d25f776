"""SQLAlchemy's engine, used for what it is good at: URL, driver, pool, and credentials that rotate.

The hot path does not go through it: statements run on the driver's own cursors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy
from sqlalchemy import Engine, event

from atomic_celery.config import Settings
from atomic_celery.store import credentials
from atomic_celery.store.connection import Connection
from atomic_celery.store.database_file import DatabaseFile
from atomic_celery.store.sessions import Sessions
from atomic_celery.store.urls import StoreUrl
from atomic_celery.store.watchdog import Watch

_POOL_SIZE, _POOL_OVERFLOW = 5, 59  # what is kept open, and what a burst of threads may add
_KEY = "atomic"

FindWatch = Callable[[], Watch | None]
"""Return the deadline of the calling thread."""


def build_engine(
    url: StoreUrl, settings: Settings, sessions: Sessions, find_watch: FindWatch, file: DatabaseFile | None
) -> Engine:
    """Build an engine; nothing is opened yet.

    Raises:
        ConfigError: The driver is not installed, or the credentials contradict each other.
    """
    url.require_driver()
    credential = credentials.choose(url, settings)
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
        _bound_connecting(engine, settings, find_watch)
        credentials.present(credential, engine)

    @event.listens_for(engine, "connect")
    def open_session(driver: Any, record: Any) -> None:
        record.info[_KEY] = sessions.open(driver, find_watch())

    if file is not None:
        _stay_with(file, engine)
    return engine


def session_of(pooled: Any) -> Connection:
    """Return our view of a connection that the pool handed out."""
    session: Connection = pooled.info[_KEY]
    return session


def _connect_arguments(url: StoreUrl, settings: Settings) -> dict[str, Any]:
    if url.dialect == "sqlite":
        return {
            "isolation_level": None,
            "check_same_thread": False,
            "timeout": settings.statement_timeout_s,
            "cached_statements": 512,
        }
    arguments: dict[str, Any] = url.connect_parameters(settings.connect_timeout_s, auth=settings.auth)
    if url.driver == "psycopg":
        from psycopg import ClientCursor

        # Several statements in one message and PREPARE by name need values put in on our side.
        arguments |= {"cursor_factory": ClientCursor, "autocommit": True, "prepare_threshold": None}
    return arguments


def _stay_with(file: DatabaseFile, engine: Engine) -> None:
    @event.listens_for(engine, "do_connect")
    def require(*_: Any) -> None:
        file.require()  # SQLite would make a new one

    @event.listens_for(engine, "connect")
    def note(*_: Any) -> None:
        file.note()


def _bound_connecting(engine: Engine, settings: Settings, find_watch: FindWatch) -> None:
    @event.listens_for(engine, "do_connect")
    def bound(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        watch = find_watch()
        if watch is not None and watch.remaining_s < settings.connect_timeout_s:
            parameters["connect_timeout"] = str(max(2, int(watch.remaining_s)))  # libpq knows no less than 2
