"""One database session: sending a statement, beginning and ending a transaction, cutting it off."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from atomic_celery.store.statements import Statement
from atomic_celery.store.watchdog import Watch, Watchdog

if TYPE_CHECKING:
    import sqlite3

Row = Sequence[Any]
Parameters = Mapping[str, Any]


class Answer(NamedTuple):
    """What a statement said: its rows, or how many rows it touched."""

    rows: list[Row]
    touched: int


class Connection(Protocol):
    """A session of either dialect."""

    def run(self, statement: Statement, parameters: Parameters) -> Answer:
        """Run a statement, in the transaction that is open or in one of its own."""
        ...

    def begin(self) -> None:
        """Open a transaction."""
        ...

    def commit(self) -> None:
        """End it and keep what it did."""
        ...

    def give_up(self) -> None:
        """End it and undo what it did; breaks the session rather than failing."""
        ...

    def stale(self) -> bool:
        """Whether the other end is known to have gone, without asking it."""
        ...

    def cut(self) -> None:
        """Make whatever another thread waits for on this session fail now."""
        ...

    def be_patient(self, wait_s: float) -> None:
        """Say how long to wait for locks that `cut` does not interrupt."""
        ...


class PostgresConnection:
    """A session over either psycopg, in autocommit mode: what has no transaction is one round trip.

    Args:
        driver: The driver's connection.
        prepares: Whether the server's session is ours alone, so that it may hold prepared statements.
        begin: What opens a transaction.
        watchdog: Who looks after the time that an answer takes.
        answer_within_s: How long it may take.
    """

    def __init__(self, driver: Any, *, prepares: bool, begin: str, watchdog: Watchdog, answer_within_s: float) -> None:
        self._driver, self._prepares, self._how_to_begin = driver, prepares, begin
        self._watchdog, self._answer_within_s = watchdog, answer_within_s
        self._watch = Watch()
        self._several_answers = hasattr(driver, "pgconn")  # psycopg2 keeps only the last
        self._prepared: set[str] = set()
        self._begin = ""
        self._answered = False

    def run(self, statement: Statement, parameters: Parameters) -> Answer:
        """Run it; the BEGIN of a transaction travels with its first statement."""
        text = statement.parts[0]
        if statement.prepare is not None and self._prepares:
            text = statement.execute
            if statement.prepare not in self._prepared:
                self.send(statement.prepare)
                self._prepared.add(statement.prepare)
        return self.send(text, parameters, bounded=statement.bounded)

    def begin(self) -> None:
        """Open a transaction with the next statement."""
        self._begin = self._how_to_begin

    def commit(self) -> None:
        """Commit, if anything was sent at all."""
        if not self._begin:
            self.send("COMMIT")
        self._begin = ""

    def give_up(self) -> None:
        """Roll back, if anything was sent at all."""
        try:
            if not self._begin:
                self.send("ROLLBACK")
        except Exception:
            self._driver.close()  # the server undoes what its client left
        self._begin = ""

    def stale(self) -> bool:
        """Between statements a server has nothing to say but goodbye."""
        if self._driver.closed:
            return True
        if not self._answered:
            return False  # what is left of a TLS handshake may still be unread
        poll = select.poll()
        poll.register(self._driver.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def cut(self) -> None:
        """Shut the socket down under the driver: its thread sees the connection lost."""
        with socket.socket(fileno=os.dup(self._driver.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)

    def be_patient(self, wait_s: float) -> None:
        """Do nothing: `cut` ends every wait."""

    def send(self, text: str, parameters: Parameters | None = None, *, bounded: bool = True) -> Answer:
        """Send *text* and wait for the answer: no longer than it may take, unless not *bounded*."""
        if not bounded:
            return self._exchange(text, parameters)
        self._watchdog.watch(self._watch.start(self._answer_within_s, self))
        try:
            return self._exchange(text, parameters)
        except Exception as error:
            if self._watch.expired:
                raise self._watch.too_late() from error
            raise
        finally:
            self._watch.finish()

    def _exchange(self, text: str, parameters: Parameters | None) -> Answer:
        begin, self._begin = self._begin, ""
        with self._driver.cursor() as cursor:
            cursor.execute(begin + text, parameters)
            if self._several_answers:
                while cursor.nextset():
                    pass
            self._answered = True
            return Answer(cursor.fetchall() if cursor.description else [], cursor.rowcount)


class SqliteConnection:
    """A SQLite session; a transaction takes the write lock as it begins, so none fails half-way."""

    def __init__(self, driver: sqlite3.Connection) -> None:
        self._driver = driver

    def run(self, statement: Statement, parameters: Parameters) -> Answer:
        """Run its parts in order, in a transaction of their own if none is open."""
        if statement.atomic or self._driver.in_transaction:
            return self._run_parts(statement, parameters)
        self.begin()
        try:
            answer = self._run_parts(statement, parameters)
            self.commit()
        except BaseException:
            self.give_up()
            raise
        return answer

    def begin(self) -> None:
        """Take the write lock."""
        self._driver.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit."""
        self._driver.execute("COMMIT")

    def give_up(self) -> None:
        """Roll back, unless SQLite has done so already."""
        if self._driver.in_transaction:
            self._driver.execute("ROLLBACK")

    def stale(self) -> bool:
        """Say no: a file does not hang up."""
        return False

    def cut(self) -> None:
        """Interrupt the statement that runs; one that waits for a lock goes on waiting."""
        self._driver.interrupt()

    def be_patient(self, wait_s: float) -> None:
        """Bound the wait for locks, from now on."""
        self._driver.execute(f"PRAGMA busy_timeout = {max(0, round(wait_s * 1000))}").close()

    def _run_parts(self, statement: Statement, parameters: Parameters) -> Answer:
        rows: list[Row] = []
        count = 0
        for part in statement.parts:
            cursor = self._driver.execute(part, parameters)
            if cursor.description is not None:
                rows = cursor.fetchall()
            count = cursor.rowcount
        return Answer(rows, count)
