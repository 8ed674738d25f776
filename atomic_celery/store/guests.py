"""The application's own connections, on which publishing joins whatever transaction they are in.

A guest is never committed, rolled back or closed here, and its errors stay those of its driver.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from atomic_celery import errors
from atomic_celery.store import foreign
from atomic_celery.store.connection import Answer, Parameters
from atomic_celery.store.statements import Statement
from atomic_celery.store.urls import Dialect

logger = logging.getLogger(__name__)

Wake = Callable[[Iterable[int]], None]
"""Wake a consumer of each of these queues; as often as a queue is named."""


class Guest(Protocol):
    """A connection of somebody else's."""

    dialect: Dialect
    is_home: bool
    """Whether queues are looked up and declared on it, too."""
    is_sole: bool
    """Whether no other connection can see its database: it is in this process's memory."""

    @property
    def in_transaction(self) -> bool:
        """Whether what runs on it may be rolled back, as far as is known."""
        ...

    @property
    def tells_commits(self) -> bool:
        """Whether it is in a transaction and will say when that is committed."""
        ...

    def run(self, statement: Statement, parameters: Parameters) -> Answer:
        """Run a statement in the transaction that is open: all of it, or nothing."""
        ...

    def scope(self) -> Hashable:
        """Return what is another value in another transaction or savepoint."""
        ...

    def wake_after_commit(self, wake: Wake, queue_ids: Iterable[int]) -> None:
        """Call *wake* with these queues, and all others so far, when its transaction is committed."""
        ...

    def apart(self) -> AbstractContextManager[Guest]:
        """Lend a connection for what should outlast a rollback of its transaction, as far as there can be one."""
        ...


class Alarm:
    """Who is to be woken once a transaction is committed. To wake one for nothing does no harm."""

    def __init__(self) -> None:
        self._waiting: defaultdict[Wake, Counter[int]] = defaultdict(Counter)

    def add(self, wake: Wake, queue_ids: Iterable[int]) -> None:
        """Remember to call *wake* with these queues."""
        self._waiting[wake].update(queue_ids)

    def forget(self) -> None:
        """Wake nobody."""
        self._waiting.clear()

    def ring(self) -> None:
        """Wake them, and forget them."""
        waiting, self._waiting = self._waiting, defaultdict(Counter)
        try:
            for wake, queue_ids in waiting.items():
                wake(queue_ids.elements())
        except errors.AtomicError as error:
            # What was published is safe; whoever was to be woken for it has a look now and then anyway.
            logger.warning("cannot wake a consumer after a commit: %s", error)


def way_of(driver: Any) -> foreign.Sqlite | foreign.Postgres:
    """Return how statements run on a driver's connection.

    Raises:
        ConfigError: It is none that can be joined.
    """
    if foreign.is_sqlite(driver):
        return foreign.on_sqlite(driver)
    if foreign.is_psycopg2(driver):
        return foreign.on_psycopg2(driver)
    if foreign.is_psycopg(driver):
        return foreign.on_psycopg(driver)
    raise errors.ConfigError(
        "publishing_in() takes a session or connection of SQLAlchemy, or a connection of psycopg2, psycopg or "
        f"sqlite3; not {type(driver).__module__}.{type(driver).__qualname__}"
    )


class DriverGuest:
    """A plain DB-API connection: psycopg2's, psycopg's or sqlite3's."""

    is_sole = False
    in_transaction = True
    tells_commits = False

    def __init__(self, driver: Any) -> None:
        way = way_of(driver)
        self.dialect: Dialect = "sqlite" if isinstance(way, foreign.Sqlite) else "postgresql"
        self.is_home = self.dialect == "sqlite"  # another connection would wait for its write lock
        self.run = way.run

    def scope(self) -> Hashable:
        """Return one value: of its savepoints nothing is known."""
        return id(self)

    def wake_after_commit(self, wake: Wake, queue_ids: Iterable[int]) -> None:
        """Refuse: a driver does not tell."""
        raise NotImplementedError

    def apart(self) -> AbstractContextManager[Guest]:
        """Lend itself: SQLite has one writer at a time."""
        return nullcontext(self)


@dataclass(slots=True)
class _Visit:
    guest: Guest | None
    over: bool = False
    """Whether the block has ended; tasks of an event loop may outlive it with their copy of the context."""


_visit: ContextVar[_Visit | None] = ContextVar("atomic_guest", default=None)
_residents: dict[str, Callable[[], Hashable]] = {}


def current() -> Guest | None:
    """Return the guest of this context."""
    visit = _visit.get()
    return None if visit is None or visit.over else visit.guest


@contextmanager
def invited(guest: Guest | None) -> Iterator[None]:
    """Let *guest* be the one that is joined here; None: nobody."""
    visit = _Visit(guest)
    token = _visit.set(visit)
    try:
        yield
    finally:
        visit.over = True
        _visit.reset(token)


def settle_in(name: str, scope: Callable[[], Hashable]) -> None:
    """Make a guest known that is there without being invited, by what tells its transactions apart."""
    global _residents
    _residents = {**_residents, name: scope}  # anew, because another thread may be going through it


def here() -> Hashable:
    """Return what is another value in another transaction or savepoint of any guest."""
    guest = current()
    return (None if guest is None else guest.scope(), *(scope() for scope in _residents.values()))
