"""Celery's side of waiting for results: each wait has an inbox of its own, whichever thread it is on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from celery import states
from celery.backends import asynchronous
from celery.exceptions import TimeoutError as TooLate
from celery.result import ResultSet

from atomic_celery import clock
from atomic_celery.results import listener
from atomic_celery.results.listener import News

BaseResultConsumer: Any = asynchronous.BaseResultConsumer

LOOK_EVERY_S = 1.0
"""How often whoever waits does what was asked to be done now and then."""


class Wait:
    """One wait for a result, or for all of a group's.

    Args:
        wants_steps: Whether also for what tasks say before they end.
    """

    def __init__(self, result: Any, *, wants_steps: bool) -> None:
        self.wants_steps = wants_steps
        self.nodes: dict[str, list[Any]] = {}
        for node in _unknown(result):
            self.nodes.setdefault(node.id, []).append(node)
        self._arrived: deque[News] = deque()
        self._error: Exception | None = None
        self._changed = threading.Condition()

    def deliver(self, news: list[News]) -> None:
        """Take what was waited for. On the listener's thread."""
        with self._changed:
            self._arrived.extend(news)
            self._changed.notify()

    def fail(self, error: Exception) -> None:
        """Learn that it is no use to wait. On the listener's thread."""
        with self._changed:
            self._error = error
            self._changed.notify()

    def take(self, timeout_s: float) -> list[News]:
        """Return what has arrived; wait for it if there is nothing.

        Raises:
            Exception: Nothing will.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._error is not None, timeout_s)
            if not self._arrived and self._error is not None:
                raise self._error
            news = list(self._arrived)
            self._arrived.clear()
        return news


class ResultConsumer(BaseResultConsumer):  # type: ignore[misc]
    """Waits for results on behalf of the threads that want them."""

    def __init__(self, backend: Any, *args: Any) -> None:
        super().__init__(backend, *args)
        self.drainer = asynchronous.Drainer(self)  # the listener's thread does it, in a green world too

    def _wait_for_pending(
        self,
        result: Any,
        timeout: float | None = None,
        on_interval: Callable[[], None] | None = None,
        on_message: Callable[[dict[str, Any]], None] | None = None,
        **_: Any,
    ) -> Iterator[None]:
        """Wait until it is known what *result* came to, and let the caller look in between.

        Raises:
            TimeoutError: It was not in time.
        """
        wait = Wait(result, wants_steps=on_message is not None)
        listening = listener.of(self.backend.store)
        listening.listen(wait, wait.nodes)
        began_s = clock.monotonic_s()
        try:
            while not result.on_ready.ready:
                left_s = LOOK_EVERY_S if timeout is None else timeout - (clock.monotonic_s() - began_s)
                for _task_id, text in wait.take(max(0.0, min(left_s, LOOK_EVERY_S))):
                    self._take_in(wait, self.backend.meta_of(text), on_message)
                if not result.on_ready.ready and left_s <= 0:
                    raise TooLate("The operation timed out.")
                yield
                if on_interval:
                    on_interval()
        finally:
            listening.leave(wait, wait.nodes)

    def _take_in(self, wait: Wait, meta: dict[str, Any], on_message: Callable[[dict[str, Any]], None] | None) -> None:
        """Let those know who waited for it."""
        if on_message is not None:
            on_message(meta)
        if meta["status"] not in states.READY_STATES:
            return
        for node in wait.nodes[meta["task_id"]]:
            if not node._cache:
                node._maybe_set_cache(meta)
            bucket = self.buckets.pop(node, None)
            if bucket is not None:
                bucket.append(node)

    def start(self, initial_task_id: str, **_: Any) -> None:
        """Do nothing: only whoever waits listens."""

    def consume_from(self, task_id: str) -> None:
        """Do nothing: only whoever waits listens."""

    def cancel_for(self, task_id: str) -> None:
        """Do nothing: only whoever waits listens."""


def _unknown(result: Any) -> Iterator[Any]:
    """Yield the single results in *result* of which it is not known what they came to."""
    if isinstance(result, ResultSet):
        for each in result.results or ():
            yield from _unknown(each)
    elif not result._cache:
        yield result
