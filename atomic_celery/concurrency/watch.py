"""The descriptors and moments the pool waits for: on Celery's loop while that runs, by itself when it does not.

At a shutdown Celery leaves its loop first and stops the pool afterwards, while tasks still run and end.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from kombu.message import Message


class Entry(Protocol):
    """A timer that was set."""

    def cancel(self) -> None:
        """Let it not fire."""


Call = tuple[Callable[..., None], tuple[Any, ...]]


class Watch:
    """Calls back when a descriptor is ready."""

    def __init__(self) -> None:
        self._hub: Any = None
        self._readers: dict[int, Call] = {}
        self._writers: dict[int, Call] = {}
        self._calls: deque[Call] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._wake_fd, self._ring_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(self._ring_fd, False)
        self.add_reader(self._wake_fd, self._on_wake)

    def attach(self, hub: Any) -> None:
        """Let *hub* do the waiting from now on. May be repeated: a hub forgets all when it is reset."""
        self._hub = hub
        for fd, (callback, args) in self._readers.items():
            hub.add_reader(fd, callback, *args)
        for fd, (callback, args) in self._writers.items():
            hub.add_writer(fd, callback, *args)

    def add_reader(self, fd: int, callback: Callable[..., None], *args: Any) -> None:
        """Call *callback* whenever *fd* can be read."""
        self._readers[fd] = callback, args
        if self._hub is not None:
            self._hub.add_reader(fd, callback, *args)

    def add_writer(self, fd: int, callback: Callable[..., None], *args: Any) -> None:
        """Call *callback* whenever *fd* can be written."""
        self._writers[fd] = callback, args
        if self._hub is not None:
            self._hub.add_writer(fd, callback, *args)

    def remove(self, fd: int) -> None:
        """Wait for *fd* no more. To be said before it is closed."""
        known = [self._readers.pop(fd, None), self._writers.pop(fd, None)]
        if self._hub is not None and any(known):
            self._hub.remove(fd)

    def later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> Entry:
        """Call *callback* once, after *delay_s*."""
        entry: Entry = self._hub.call_later(delay_s, callback, *args)
        return entry

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Call *callback* on the pool's thread. Safe from any thread, also while the pool is stopping."""
        with self._lock:
            if self._closed:
                return
            self._calls.append((callback, args))
            with contextlib.suppress(BlockingIOError):  # full of wake-ups as it is
                os.write(self._ring_fd, b"\0")

    def wait(self, timeout_s: float) -> None:
        """Do one turn of what the hub does, without it."""
        if self._hub is not None:
            timeout_s = min(timeout_s, self._hub.fire_timers(max_delay=timeout_s))
            _acknowledge(self._hub)
        poll = select.poll()
        for fd in self._readers:
            poll.register(fd, select.POLLIN)
        for fd in self._writers:
            poll.register(fd, select.POLLOUT)
        for fd, _ in poll.poll(timeout_s * 1000):
            callback, args = self._readers.get(fd) or self._writers.get(fd) or (_nothing, ())
            callback(*args)

    def inherited(self) -> list[int]:
        """Return the descriptors that a child has to close."""
        return [self._wake_fd, self._ring_fd]

    def close(self) -> None:
        """Close its own descriptors; `call_soon` does nothing from now on. Safe to repeat."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self.remove(self._wake_fd)
                os.close(self._wake_fd)
                os.close(self._ring_fd)

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_fd, 4096)
        while self._calls:
            callback, args = self._calls.popleft()
            callback(*args)


def _nothing() -> None:
    """Stand in for a descriptor that an earlier callback of the same turn removed."""


def _acknowledge(hub: Any) -> None:
    """Do what Celery has put off to the hub's next turn, if it settles a message; leave the rest to the hub."""
    for callback in hub._pop_ready():
        fun: Any = getattr(callback, "fun", None)
        if isinstance(getattr(fun, "__self__", None), Message) and fun.__name__ in _SETTLING:
            try:
                callback()
            except Exception as error:
                hub.on_callback_error(callback, error)
        else:
            hub.call_soon(callback)


_SETTLING = ("ack_log_error", "reject_log_error")
