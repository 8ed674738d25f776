"""Running the protocol's statements on connections that others made, set up and go on using."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from atomic_celery.store.connection import Answer, Parameters, Row
from atomic_celery.store.statements import Statement, Statements

if TYPE_CHECKING:
    import sqlite3

Send = Callable[[str, Parameters], Answer]
"""Run one statement as the driver has it."""

_SAVEPOINT = "atomic_publishing"
_SCRATCH = Statements("sqlite", "atomic").of("session")["lend"]
_LEGACY = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, before Python 3.12 the only way


class SqliteState(Protocol):
    """What a SQLite connection says of its transaction."""

    @property
    def in_transaction(self) -> bool:
        """Whether one is open."""
        ...

    @property
    def isolation_level(self) -> str | None:
        """None: it opens none by itself."""
        ...


class Sqlite:
    """Statements on somebody's SQLite connection.

    Args:
        send: Runs one.
        state: The driver's connection.
    """

    def __init__(self, send: Send, state: SqliteState) -> None:
        self._send, self._state = send, state

    def run(self, statement: Statement, parameters: Parameters) -> Answer:
        """Run the parts in order, all or none."""
        for part in _SCRATCH.parts:
            self._send(part, {})
        if self._begins_for_itself():
            return self._framed(statement, parameters, "BEGIN IMMEDIATE", "COMMIT", ("ROLLBACK",))
        if not self._state.in_transaction:
            self._send("BEGIN", {})  # the driver would do so too, but not before every kind of statement
        back = (f"ROLLBACK TO {_SAVEPOINT}", f"RELEASE {_SAVEPOINT}")
        return self._framed(statement, parameters, f"SAVEPOINT {_SAVEPOINT}", f"RELEASE {_SAVEPOINT}", back)

    def _begins_for_itself(self) -> bool:
        """Whether each statement on this connection is its own transaction now."""
        if self._state.in_transaction:
            return False
        autocommit = getattr(self._state, "autocommit", _LEGACY)
        return self._state.isolation_level is None if autocommit == _LEGACY else bool(autocommit)

    def _framed(
        self, statement: Statement, parameters: Parameters, begin: str, end: str, undo: tuple[str, ...]
    ) -> Answer:
        self._send(begin, {})
        try:
            answer = self._run_parts(statement, parameters)
            self._send(end, {})
        except BaseException:
            if self._state.in_transaction:  # some errors make SQLite roll back by itself
                for text in undo:
                    self._send(text, {})
            raise
        return answer

    def _run_parts(self, statement: Statement, parameters: Parameters) -> Answer:
        rows: list[Row] = []
        touched = 0
        for part in statement.parts:
            answer = self._send(part, parameters)
            rows, touched = answer.rows or rows, answer.touched
        return Answer(rows, touched)


class Postgres:
    """Statements on somebody's PostgreSQL connection; there each is one, and atomic."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def run(self, statement: Statement, parameters: Parameters) -> Answer:
        """Run it."""
        return self._send(statement.parts[0], parameters)


def on_sqlite(driver: sqlite3.Connection) -> Sqlite:
    """Return how to run statements on a connection of the standard library."""

    def send(text: str, parameters: Parameters) -> Answer:
        cursor = driver.cursor()
        cursor.row_factory = None  # its owner may have one that makes anything else of a row
        try:
            cursor.execute(text, parameters)
            return Answer(cursor.fetchall() if cursor.description else [], cursor.rowcount)
        finally:
            cursor.close()

    return Sqlite(send, driver)


def is_sqlite(driver: Any) -> bool:
    """Whether *driver* is a connection of the standard library, which not every Python has."""
    module = sys.modules.get("sqlite3")
    return module is not None and isinstance(driver, module.Connection)


def is_psycopg2(driver: Any) -> bool:
    """Whether *driver* is a connection of psycopg2, which need not be installed."""
    module = sys.modules.get("psycopg2.extensions")
    return module is not None and isinstance(driver, module.connection)


def on_psycopg2(driver: Any) -> Postgres:
    """Return how to run statements on a connection of psycopg2."""
    from psycopg2.extensions import cursor as plain_cursor

    def send(text: str, parameters: Parameters) -> Answer:
        with driver.cursor(cursor_factory=plain_cursor) as cursor:
            cursor.execute(text, parameters)
            return Answer(cursor.fetchall() if cursor.description else [], cursor.rowcount)

    return Postgres(send)


def is_psycopg(driver: Any) -> bool:
    """Whether *driver* is a connection of psycopg 3, which need not be installed."""
    module = sys.modules.get("psycopg")
    return module is not None and isinstance(driver, module.Connection)


def on_psycopg(driver: Any) -> Postgres:
    """Return how to run statements on a connection of psycopg 3."""
    from psycopg import ClientCursor
    from psycopg.rows import tuple_row

    def send(text: str, parameters: Parameters) -> Answer:
        with ClientCursor(driver, row_factory=tuple_row) as cursor:
            cursor.execute(text, parameters)
            return Answer(list(cursor.fetchall()) if cursor.description else [], cursor.rowcount)

    return Postgres(send)
