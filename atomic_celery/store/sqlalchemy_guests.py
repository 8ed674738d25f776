"""Guests by way of SQLAlchemy: its sessions tell when they commit, its connections do not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from atomic_celery import errors
from atomic_celery.store import foreign
from atomic_celery.store.connection import Answer, Parameters
from atomic_celery.store.guests import Alarm, Guest, Wake
from atomic_celery.store.statements import Statement
from atomic_celery.store.urls import Dialect

_NAMED = re.compile(r"%\((\w+)\)s")
_PARAMSTYLES = {"postgresql": ("pyformat", "numeric_dollar"), "sqlite": ("qmark", "named")}


class ConnectionGuest:
    """A Core connection, in whatever transaction it is when something is published."""

    is_sole = False
    in_transaction = True
    tells_commits = False

    def __init__(self, connection: Connection) -> None:
        self.dialect = _dialect_of(connection)
        self.is_home = self.dialect == "sqlite"  # another connection would wait for its write lock
        self._connection = connection

    def run(self, statement: Statement, parameters: Parameters) -> Answer:
        """Run a statement; the connection begins a transaction for it, as for any other."""
        return _way_on(self._connection).run(statement, parameters)

    def scope(self) -> Hashable:
        """Return the transactions that are open."""
        return self._connection.get_transaction(), self._connection.get_nested_transaction()

    def wake_after_commit(self, wake: Wake, queue_ids: Iterable[int]) -> None:
        """Refuse: a connection does not tell."""
        raise NotImplementedError

    def apart(self) -> AbstractContextManager[Guest]:
        """Lend itself: SQLite has one writer at a time."""
        return nullcontext(self)


class SessionGuest:
    """A session; it may begin, commit and roll back several transactions while it is a guest."""

    is_sole = False
    in_transaction = True
    tells_commits = True

    def __init__(self, session: Session) -> None:
        self.dialect = _dialect_of(session.connection())
        self.is_home = self.dialect == "sqlite"
        self._session = session

    def run(self, statement: Statement, parameters: Parameters) -> Answer:
        """Run a statement; the session begins a transaction for it, as for any other."""
        return _way_on(self._session.connection()).run(statement, parameters)

    def scope(self) -> Hashable:
        """Return the transactions that are open."""
        self._session.connection()  # begins one, if there is none yet
        return self._session.get_transaction(), self._session.get_nested_transaction()

    def wake_after_commit(self, wake: Wake, queue_ids: Iterable[int]) -> None:
        """Call *wake* after the session's next commit."""
        _alarms.of(self._session).add(wake, queue_ids)

    def apart(self) -> AbstractContextManager[Guest]:
        """Lend itself: SQLite has one writer at a time."""
        return nullcontext(self)


class _Alarms:
    """The alarm of each session, rung by its commits and forgotten with its rollbacks."""

    def __init__(self) -> None:
        self._alarms: WeakKeyDictionary[Session, Alarm] = WeakKeyDictionary()

    def of(self, session: Session) -> Alarm:
        """Return the alarm of a session."""
        alarm = self._alarms.get(session)
        if alarm is None:
            alarm = self._alarms[session] = Alarm()
            event.listen(session, "after_commit", self._committed)
            event.listen(session, "after_rollback", self._rolled_back)
        return alarm

    def _committed(self, session: Session) -> None:
        if not session.in_nested_transaction():  # the end of a savepoint is no commit
            _off_the_loop(self._alarms[session].ring)

    def _rolled_back(self, session: Session) -> None:
        self._alarms[session].forget()


_alarms = _Alarms()


def _off_the_loop(ring: Callable[[], None]) -> None:
    """Call *ring*: on another thread if this one has an event loop to run."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        ring()
    else:
        loop.run_in_executor(None, ring)


def _dialect_of(connection: Connection) -> Dialect:
    dialect = connection.dialect
    if dialect.paramstyle in _PARAMSTYLES.get(dialect.name, ()):
        return "postgresql" if dialect.name == "postgresql" else "sqlite"
    raise errors.ConfigError(f"publishing_in() cannot use the driver {dialect.driver!r} of {dialect.name}")


def _way_on(connection: Connection) -> foreign.Sqlite | foreign.Postgres:
    numbered = connection.dialect.paramstyle == "numeric_dollar"

    def send(text: str, parameters: Parameters) -> Answer:
        arguments: Any = dict(parameters) or None
        if numbered:
            text, names = _numbered(text)
            arguments = tuple(parameters[name] for name in names)
        result = connection.exec_driver_sql(text, arguments)
        return Answer(list(map(tuple, result.fetchall())) if result.returns_rows else [], result.rowcount)

    if connection.dialect.name == "sqlite":
        return foreign.Sqlite(send, connection.connection.driver_connection)  # type: ignore[arg-type]
    return foreign.Postgres(send)


@lru_cache(maxsize=100)
def _numbered(text: str) -> tuple[str, list[str]]:
    """Return a statement with $1, $2 … for its parameters, and their names in that order."""
    names = list(dict.fromkeys(_NAMED.findall(text)))
    return _NAMED.sub(lambda found: f"${names.index(found[1]) + 1}", text).replace("%%", "%"), names
