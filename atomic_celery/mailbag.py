"""Messages that a block of code publishes, collected here to be stored many to a statement."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from atomic_celery import clock, refusals
from atomic_celery.store import NewMessage, Store, guests

A_STATEMENT = 1000
"""How many messages one statement stores."""

SLOW_S = 0.5
"""A message that took so long to come is stored at once: whoever makes them this slowly wants them run meanwhile."""

_current: ContextVar[Mailbag | None] = ContextVar("atomic_mailbag", default=None)


class Mailbag:
    """What waits to be stored, database by database, in the order of its arrival.

    Args:
        brims_at: Store what has come together as soon as it is so many, or comes slowly; None: only when asked to.
        lazily: Take the first for a slow one: it may be long ago that it came.
        scope: What tells the application's transactions and savepoints apart.
    """

    def __init__(
        self, *, brims_at: int | None = None, lazily: bool = False, scope: Callable[[], Hashable] = guests.here
    ) -> None:
        self._brims_at = brims_at
        self._scope = scope
        self._opened_in = scope()
        self._waiting: dict[Store, list[NewMessage]] = {}
        self.closed = False
        """Whether it takes nothing more."""
        self._lock = threading.RLock()
        self._ready_at_s = -math.inf if lazily else clock.monotonic_s()

    def add(self, store: Store, new: Sequence[NewMessage]) -> bool:
        """Take messages; False: not these.

        Not when the bag is closed, because a thread that the block left behind may come late; and not from within a
        transaction or savepoint that began after the bag was opened: it may be rolled back, and they with it.
        """
        with self._lock:
            if self.closed or self._scope() != self._opened_in:
                return False
            waiting = self._waiting.setdefault(store, [])
            waiting.extend(new)
            slow = clock.monotonic_s() - self._ready_at_s >= SLOW_S
            if self._brims_at is not None and (slow or len(waiting) >= self._brims_at):
                self.empty()
            self._ready_at_s = clock.monotonic_s()
        return True

    def empty(self) -> None:
        """Store what waits, `A_STATEMENT` messages at a time.

        Atomicity: each statement by itself, or all in the transaction that is open here. What an
            error leaves unstored waits on; to call this again never stores a message twice.

        Raises:
            StoreUnavailable: It is unknown whether the last statement was done.
            QueueNotFound: A queue was deleted meanwhile.
        """
        with self._lock:
            for store, waiting in self._waiting.items():
                while now := waiting[:A_STATEMENT]:
                    refusals.publish(store, now)
                    del waiting[:A_STATEMENT]

    def close(self) -> None:
        """Take nothing more."""
        with self._lock:
            self.closed = True

    @property
    def waiting(self) -> Mapping[Store, Sequence[NewMessage]]:
        """What was taken and not stored yet."""
        return self._waiting


def current() -> Mailbag | None:
    """Return the bag that collects what this context publishes; None: nothing does."""
    return _current.get()


@contextmanager
def collecting(bag: Mailbag) -> Iterator[Mailbag]:
    """Let *bag* collect what is published here; in the end it is closed, not emptied."""
    token = _current.set(bag)
    try:
        yield bag
    finally:
        _current.reset(token)
        bag.close()


def put(store: Store, new: Sequence[NewMessage]) -> None:
    """Publish messages: into the bag if there is one, else at once.

    What is no task (events, remote control, replies) never waits.
    """
    bag = _current.get()
    if bag is None or any(message.task_name is None for message in new) or not bag.add(store, new):
        refusals.publish(store, new)
