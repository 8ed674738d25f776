"""Deadlines over blocking database calls: one thread that cuts off whoever waits too long.

A server that accepts and then says nothing would otherwise hold its caller for ever: no driver
gives up by itself.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
from typing import NamedTuple, Protocol

from atomic_celery import clock, errors


class Cuttable(Protocol):
    """Something that another thread can be waiting on."""

    def cut(self) -> None:
        """Make the wait fail now."""
        ...


class Watch:
    """A deadline over one connection at a time. Started again, it must not be due earlier than before."""

    __slots__ = ("_expired", "_lock", "_using", "over", "queued", "timeout_s", "until_s")

    def __init__(self) -> None:
        self.over, self.queued = True, False
        self.timeout_s = self.until_s = 0.0
        self._lock = threading.Lock()
        self._using: Cuttable | None = None
        self._expired = False

    @property
    def remaining_s(self) -> float:
        """Seconds left; not above 0 once the time is up."""
        return self.until_s - clock.monotonic_s()

    @property
    def expired(self) -> bool:
        """Whether the time is up."""
        return self._expired or self.remaining_s <= 0

    def start(self, timeout_s: float, using: Cuttable | None = None) -> Watch:
        """Begin to count."""
        with self._lock:
            self.timeout_s, self.until_s = timeout_s, clock.monotonic_s() + timeout_s
            self.over, self._expired, self._using = False, False, using
        return self

    def use(self, connection: Cuttable | None) -> None:
        """Say what to cut when the time is up; None: nothing, for what was given back."""
        with self._lock:
            self._using = connection

    def finish(self) -> None:
        """Stop counting: from here on, nothing is cut."""
        with self._lock:
            self.over, self._using = True, None

    def expire(self) -> None:
        """Cut the connection in use, unless it was finished in time."""
        with self._lock:
            if self.over:
                return
            self._expired = True
            if self._using is not None:
                with contextlib.suppress(Exception):  # it broke by itself in the same moment
                    self._using.cut()

    def too_late(self) -> errors.StoreUnavailable:
        """Return the error that says so."""
        return errors.StoreUnavailable(f"no answer from the database within {self.timeout_s:g} s")


class _Place(NamedTuple):
    """Where a watch stands in the queue: no later than where it should, as it may have been started again."""

    until_s: float
    number: int
    watch: Watch


class Watchdog:
    """The thread that ends what is overdue; it lives while there are deadlines to look after."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: list[_Place] = []
        self._number = 0
        self._thread: threading.Thread | None = None

    def watch(self, watch: Watch) -> None:
        """Look after *watch*, which was started, until it is `over`."""
        with self._changed:
            if watch.queued:
                return
            self._enqueue(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="atomic-deadlines", daemon=True)
                self._thread.start()
            elif self._queue[0].watch is watch:
                self._changed.notify()

    def _enqueue(self, watch: Watch) -> None:
        self._number += 1
        watch.queued = True
        heapq.heappush(self._queue, _Place(watch.until_s, self._number, watch))

    def _run(self) -> None:
        while (overdue := self._next_overdue()) is not None:
            overdue.expire()

    def _next_overdue(self) -> Watch | None:
        """Wait for the next deadline that passes; None when there is none left."""
        with self._changed:
            while self._queue:
                left_s = self._queue[0].until_s - clock.monotonic_s()
                if left_s > 0:
                    self._changed.wait(left_s)
                    continue
                watch = heapq.heappop(self._queue).watch
                watch.queued = False
                if not watch.over and watch.remaining_s > 0:
                    self._enqueue(watch)
                elif not watch.over:
                    return watch
            self._thread = None
            return None
