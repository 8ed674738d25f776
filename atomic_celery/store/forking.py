"""SQLite in a process that forks.

SQLite has locks for the whole process. A child that is forked while another thread is inside of it finds them locked
for ever, and hangs as soon as it opens a database of its own. So a fork waits until no thread is, and none gets in
meanwhile.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class Gate:
    """Open to any number of threads, until one closes it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    def __enter__(self) -> None:
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._inside -= 1
            if self._closed:
                self._changed.notify_all()

    def close(self) -> None:
        """Wait until nobody is inside, and let nobody in."""
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._closed = True
            while self._inside:
                self._changed.wait()

    def open(self) -> None:
        """Let everybody in."""
        with self._changed:
            self._closed = False
            self._changed.notify_all()


_gate = Gate()


def _within(call: Callable[..., Answer], *arguments: Any) -> Answer:
    with _gate:
        return call(*arguments)


class Cursor(sqlite3.Cursor):
    """A cursor that no fork interrupts."""

    def execute(self, *arguments: Any) -> Any:
        """Run a statement."""
        return _within(super().execute, *arguments)

    def fetchone(self) -> Any:
        """Return the next row."""
        return _within(super().fetchone)

    def fetchall(self) -> Any:
        """Return all rows that are left."""
        return _within(super().fetchall)

    def close(self) -> None:
        """Close it."""
        _within(super().close)


class Connection(sqlite3.Connection):
    """A connection that no fork interrupts."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        with _gate:
            super().__init__(*arguments, **options)

    def cursor(self, factory: Any = Cursor) -> Any:
        """Return a cursor."""
        return super().cursor(factory)

    def execute(self, *arguments: Any) -> Any:
        """Run a statement on a new cursor: since Python 3.11 the base class asks neither `cursor` nor its `execute`."""
        return self.cursor().execute(*arguments)

    def commit(self) -> None:
        """Commit."""
        _within(super().commit)

    def rollback(self) -> None:
        """Roll back."""
        _within(super().rollback)

    def close(self) -> None:
        """Close it."""
        _within(super().close)


def _start_anew_in_child() -> None:
    global _gate
    _gate = Gate()


os.register_at_fork(
    before=lambda: _gate.close(), after_in_parent=lambda: _gate.open(), after_in_child=_start_anew_in_child
)
