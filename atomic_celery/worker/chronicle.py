"""What a worker says of itself, one event line at a time; collected during a turn of the loop, written at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from atomic_celery import clock
from atomic_celery.lines import Lines, Value

if TYPE_CHECKING:
    from atomic_celery.endings import Ending
    from atomic_celery.presence import Load
    from atomic_celery.worker.requests import HeldRequest


class Chronicle:
    """The events of one worker. Safe from any thread."""

    def __init__(self, lines: Lines, load: Load) -> None:
        self._lines, self._load = lines, load
        self._waiting: list[tuple[str, dict[str, Value]]] = []
        self._lock = threading.Lock()

    def say(self, event: str, **fields: Value) -> None:
        """Say something now, after all that was collected."""
        self._note(event, fields)
        self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        if self._waiting:
            with self._lock:
                waiting, self._waiting = self._waiting, []
            self._lines.say_all(waiting)

    def claimed(self, request: HeldRequest) -> None:
        """Say that a child has come."""
        self._note("claimed", {"child": request.id, "fence": _fence(request)})

    def began(self, request: HeldRequest) -> None:
        """Count how long a child that begins has waited, for the fleet's history."""
        if request.began_s is not None and request.ready_s is not None:
            self._load.tally.add("waited", (request.began_s - request.ready_s) * 1000)

    def released(self, request: HeldRequest, outcome: str) -> None:
        """Say that a child has gone, and how; count it if it ran."""
        self.count(request, outcome)
        self._note("released", {"child": request.id, "outcome": outcome})

    def count(self, request: HeldRequest, outcome: str) -> None:
        """Count the end of a child that ran, for the fleet's history."""
        if request.began_s is not None:
            self._load.tally.add(outcome, (clock.monotonic_s() - request.began_s) * 1000)

    def lost(self, request: HeldRequest, reason: str) -> None:
        """Say that a child was taken from us."""
        self._note("lost", {"child": request.id, "fence": _fence(request), "reason": reason})

    def refused(self, ending: Ending, request: HeldRequest | None) -> None:
        """Say that the end of a child was not ours to tell."""
        message_id, fence = ending.held
        child = request.id if request is not None else None
        self._note("lost", {"child": child, "message": message_id, "fence": fence, "reason": "refused"})

    def degraded(self, failures: int, retry_in_ms: int, error: Exception) -> None:
        """Say that the database did not answer."""
        self._load.poll_failures, self._load.last_error = failures, str(error)
        self.say("degraded", failures=failures, retry_in_ms=retry_in_ms, error=str(error))

    def recovered(self) -> None:
        """Say that it answers again."""
        self._load.poll_failures = 0
        self.say("recovered")

    def _note(self, event: str, fields: dict[str, Value]) -> None:
        with self._lock:
            self._waiting.append((event, fields))


def _fence(request: HeldRequest) -> int | None:
    return request.held[1] if request.held is not None else None
