"""Deadlines over blocking database calls: one thread that cuts off whoever waits too long.

A server that accepts and then says nothing would otherwise hold its caller for ever: no driver
gives up by itself.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
from typing import Protocol

from atomic_celery import clock


class Cuttable(Protocol):
    """Something that another thread can be waiting on."""

    def cut(self) -> None:
        """Make the wait fail now."""
        ...


class Watch:
    """One deadline of one thread, over the connection that it uses at the moment."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.until_s = clock.monotonic_s() + timeout_s
        self.over = False
        self._lock = threading.Lock()
        self._using: Cuttable | None = None
        self._expired = False

    def __lt__(self, other: Watch) -> bool:
        return self.until_s < other.until_s

    @property
    def remaining_s(self) -> float:
        """Seconds left; not above 0 once it is over."""
        return self.until_s - clock.monotonic_s()

    @property
    def expired(self) -> bool:
        """Whether the time is up."""
        return self._expired or self.remaining_s <= 0

    def use(self, connection: Cuttable | None) -> None:
        """Say what to cut when the time is up; None: nothing, for what was given back."""
        with self._lock:
            self._using = connection

    def expire(self) -> None:
        """Cut the connection in use, if there is one."""
        with self._lock:
            self._expired = True
            if self._using is not None:
                with contextlib.suppress(Exception):  # it broke by itself in the same moment
                    self._using.cut()


class Watchdog:
    """The thread that ends what is overdue; it starts with the first deadline."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: list[Watch] = []
        self._thread: threading.Thread | None = None

    def watch(self, watch: Watch) -> None:
        """Begin to look after *watch*, until it is `over`."""
        with self._changed:
            heapq.heappush(self._watches, watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="atomic-deadlines", daemon=True)
                self._thread.start()
            elif self._watches[0] is watch:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            self._next_overdue().expire()

    def _next_overdue(self) -> Watch:
        with self._changed:
            while True:
                while self._watches and self._watches[0].over:
                    heapq.heappop(self._watches)
                left_s = self._watches[0].remaining_s if self._watches else None
                if left_s is not None and left_s <= 0:
                    return heapq.heappop(self._watches)
                self._changed.wait(left_s)
