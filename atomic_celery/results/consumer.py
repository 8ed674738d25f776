"""Celery's side of waiting for results."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from celery.backends import asynchronous
from celery.result import ResultSet

from atomic_celery import clock, errors
from atomic_celery.results import listener
from atomic_celery.results.listener import News

BaseResultConsumer: Any = asynchronous.BaseResultConsumer

LOOK_EVERY_S = 1.0
"""How often whoever waits does what was asked to be done now and then."""


class ResultConsumer(BaseResultConsumer):  # type: ignore[misc]
    """Hands results to the threads that wait for them; several may."""

    def __init__(self, backend: Any, *args: Any) -> None:
        super().__init__(backend, *args)
        self.drainer = asynchronous.Drainer(self)
        self._forget_threads()

    def _forget_threads(self) -> None:
        self._arrived: deque[News] = deque()
        self._error: errors.AtomicError | None = None
        self._changed = threading.Condition()

    def on_after_fork(self) -> None:
        """Begin anew: no thread of the parent's waits here."""
        self._forget_threads()

    @property
    def wants_steps(self) -> bool:
        """Whether somebody wants to know what tasks say before they end."""
        return self.on_message is not None

    # On the listener's thread

    def deliver(self, news: list[News]) -> None:
        """Take what was waited for."""
        with self._changed:
            self._arrived.extend(news)
            self._changed.notify_all()

    def fail(self, error: errors.AtomicError) -> None:
        """Let those who wait fail."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    # On the threads of those who wait

    def _wait_for_pending(self, result: Any, **options: Any) -> Iterator[None]:
        self._error = None
        wanted = {node.id for node in _unknown(result)}
        listening = listener.of(self.backend.store)
        listening.listen(self, wanted)
        try:
            yield from super()._wait_for_pending(result, **options)
        finally:
            listening.leave(self, wanted)

    def drain_events_until(
        self, p: Any, timeout: float | None = None, on_interval: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Take in what arrives until *p* is fulfilled.

        Raises:
            TimeoutError: It was not in time.
        """
        began_s = clock.monotonic_s()
        while not p.ready:
            left_s = LOOK_EVERY_S if timeout is None else timeout - (clock.monotonic_s() - began_s)
            self.drain_events(min(left_s, LOOK_EVERY_S))
            if not p.ready and left_s <= 0:
                raise TimeoutError
            yield
            if on_interval:
                on_interval()

    def drain_events(self, timeout: float | None = None) -> None:
        """Wait until something has arrived, and take it in."""
        with self._changed:
            if not self._arrived and self._error is None:
                self._changed.wait(timeout)
            news = list(self._arrived)
            self._arrived.clear()
            error = self._error
        for _, meta in news:
            self.on_state_change(self.backend.meta_of(meta), None)
        if news:
            with self._changed:
                self._changed.notify_all()  # some of it may have been another thread's
        elif error is not None:
            raise error

    def start(self, initial_task_id: str, **_: Any) -> None:
        """Do nothing: only whoever waits listens."""

    def consume_from(self, task_id: str) -> None:
        """Do nothing: only whoever waits listens."""

    def cancel_for(self, task_id: str) -> None:
        """Do nothing, as is called from finalizers too."""


def _unknown(result: Any) -> Iterator[Any]:
    """Yield the single results in *result* of which it is not known what they came to."""
    if isinstance(result, ResultSet):
        for each in result.results or ():
            yield from _unknown(each)
    elif not result._cache:
        yield result
