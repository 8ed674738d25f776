"""SQLite in a process that forks.

SQLite remembers for the whole process which locks it has. A child that is forked while another thread is inside of
it, or has a transaction open, inherits that memory for ever: it hangs as soon as it opens a database of its own, or
finds it locked by nobody. So whoever uses a connection does so in an `undisturbed` block: a fork waits for the end of
those that other threads are in, and none begins meanwhile.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from types import TracebackType

FORK_ANYWAY_AFTER_S = 10.0
"""How long a fork waits for blocks that do not end: longer than a statement may take."""


class Gate:
    """Open to any number of threads, until one closes it. Whoever is inside may go in again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._depths: dict[int, int] = {}
        self._closed = False

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            if me not in self._depths:
                while self._closed:
                    self._changed.wait()
            self._depths[me] = self._depths.get(me, 0) + 1

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        me = threading.get_ident()
        with self._changed:
            self._depths[me] -= 1
            if not self._depths[me]:
                del self._depths[me]
                if self._closed:
                    self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in, and wait until no other thread is inside; not for ever."""
        me = {threading.get_ident()}
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._closed = True
            self._changed.wait_for(lambda: self._depths.keys() <= me, FORK_ANYWAY_AFTER_S)

    def open(self) -> None:
        """Let everybody in."""
        with self._changed:
            self._closed = False
            self._changed.notify_all()


_gate = Gate()


def undisturbed() -> AbstractContextManager[None]:
    """Return a ``with`` block during which no other thread forks."""
    return _gate


def _start_anew_in_child() -> None:
    global _gate
    _gate = Gate()  # blocks that the forking thread was in go on counting on the parent's


os.register_at_fork(
    before=lambda: _gate.close(), after_in_parent=lambda: _gate.open(), after_in_child=_start_anew_in_child
)
