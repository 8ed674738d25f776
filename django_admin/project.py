"""Which fleet this Django project belongs to, and how its store is reached: by Django's own connection, if possible."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from django.db import DatabaseError, connections, router, transaction

from atomic_celery import config, django_connection, errors, payload, trouble
from atomic_celery.store import open_store
from atomic_celery.store.store import Store

_ALIAS = "atomic+django://"

_opened: list[tuple[str, config.Settings, Store]] = []


def url() -> str:
    """Return the fleet's database as Django's settings name it; it may hold a password."""
    return django_connection.fleet_url()


def alias() -> str | None:
    """Return what Django calls the fleet's database; None: Django does not know it."""
    return (url().removeprefix(_ALIAS).strip("/") or "default") if url().startswith(_ALIAS) else None


def prefix() -> str:
    """Return the prefix of the tables; the default, if the settings are wrong: the checks say so."""
    try:
        return django_connection.fleet_settings().prefix
    except errors.ConfigError:
        return config.Settings().prefix


def store() -> Store:
    """Return the fleet's store.

    Raises:
        ConfigError: The settings are wrong.
    """
    wanted = (url(), django_connection.fleet_settings())
    if not _opened or _opened[0][:2] != wanted:
        opened = open_store(*wanted)
        while _opened:
            _opened.pop()[2].close()
        _opened.append((*wanted, opened))
    return _opened[0][2]


@contextlib.contextmanager
def looking(limit_s: float = trouble.READ_LIMIT_S) -> Iterator[Store]:
    """Read, for at most so long.

    Raises:
        StoreTrouble: The database could not be reached or did not answer in time.
        DatabaseError: The same, where the connection is Django's.
    """
    reached = store()
    with contextlib.ExitStack() as stack:
        stack.enter_context(trouble.bounded(reached, limit_s))
        if (name := alias()) is not None:
            stack.enter_context(_bounded(name, limit_s))
        stack.enter_context(reached.at_home())
        yield reached


def write_trouble() -> str:
    """Commit a write that changes nothing; return what is wrong with it."""
    try:
        with looking(trouble.WRITE_LIMIT_S) as reached:
            trouble.probe_write(reached)
    except trouble.StoreTrouble as found:
        return f"{found.headline}: {found.why}; {found.hint}"
    except DatabaseError as error:
        return payload.without_passwords(f"shared store degraded: a write did not commit: {error}")
    return ""


@contextlib.contextmanager
def changing() -> Iterator[Store]:
    """Change something together with an entry in Django's admin log: both or neither, if one database has both.

    Otherwise the fleet's transaction is committed first, and the log's right after it. What ends in between is
    missing from Django's log; the fleet event, which names the user too, is always there.
    """
    from django.contrib.admin.models import LogEntry  # not before the apps are loaded

    reached, logs_in, name = store(), router.db_for_write(LogEntry), alias()
    with contextlib.ExitStack() as stack:
        stack.enter_context(transaction.atomic(using=logs_in))
        if name is None:
            stack.enter_context(trouble.bounded(reached))
            stack.enter_context(reached.transaction())
        else:
            stack.enter_context(_bounded(name, trouble.READ_LIMIT_S))
            stack.enter_context(reached.at_home())
        yield reached


@contextlib.contextmanager
def _bounded(name: str, limit_s: float) -> Iterator[None]:
    """Begin a transaction of Django's in which no statement waits for longer than *limit_s*."""
    connection, limit_ms = connections[name], round(limit_s * 1000)
    if connection.vendor == "sqlite":
        with _patience(connection, limit_ms), transaction.atomic(using=name):
            yield
        return
    with transaction.atomic(using=name):
        with connection.cursor() as cursor:
            # Compiling a statement takes seconds where an estimate is high, and its answer milliseconds.
            cursor.execute(f"SET LOCAL statement_timeout = {limit_ms}; SET LOCAL jit = off")
        yield


@contextlib.contextmanager
def _patience(connection: Any, limit_ms: int) -> Iterator[None]:
    """Let SQLite wait for no lock for longer. It is told by the driver: that is a matter of this process alone."""
    connection.ensure_connection()
    driver = connection.connection
    [before_ms] = driver.execute("PRAGMA busy_timeout").fetchone()
    driver.execute(f"PRAGMA busy_timeout = {min(before_ms, limit_ms)}")
    try:
        yield
    finally:
        driver.execute(f"PRAGMA busy_timeout = {before_ms}")
