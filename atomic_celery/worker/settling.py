"""How a worker's claims end, where Celery's acknowledgement is not the word for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from billiard.einfo import ExceptionInfo

from atomic_celery.claimer import Hooks
from atomic_celery.endings import Ending
from atomic_celery.outbox import Entry
from atomic_celery.store.records import Crashed
from atomic_celery.worker import burial

if TYPE_CHECKING:
    from atomic_celery.store.records import Held
    from atomic_celery.worker.host import Host
    from atomic_celery.worker.requests import HeldRequest

logger = logging.getLogger(__name__)


class Settling:
    """Ends claims through the worker's claimer, and acts on the database's verdict."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._crashing: dict[Held, tuple[HeldRequest, ExceptionInfo]] = {}
        self.hooks = Hooks(
            degraded=host.chronicle.degraded,
            recovered=host.chronicle.recovered,
            refused=self._on_refused,
            crashed=self._on_crashed,
        )

    def complete_first(self, request: HeldRequest, start: Callable[[], None]) -> None:
        """Complete a task that is settled early, and *start* it once the database has said that it was ours."""

        def then(ours: bool) -> None:
            self._host.call_soon(self._completed_first, request, start, ours)

        self._end(request, Ending(self._held(request), "complete", then=then))

    def complete(self, request: HeldRequest, entries: list[Entry]) -> None:
        """Complete its message and do what it leaves to be done, together or not at all."""
        left = (lambda: entries) if entries else None
        self._end(request, Ending(self._held(request), "complete", outbox=left))

    def release(self, request: HeldRequest) -> None:
        """Make its message ready for others at once; no crash is counted."""
        self._end(request, Ending(self._held(request), "release"))

    def crash(self, request: HeldRequest, exc_info: ExceptionInfo) -> None:
        """Make its message ready again, or let it be buried: its child died."""
        held = self._held(request)
        self._crashing[held] = (request, exc_info)
        self._end(request, Ending(held, "crash", reason=str(exc_info.exception)))

    def _end(self, request: HeldRequest, ending: Ending) -> None:
        request.forget_delivery()
        self._host.claimer.settle(ending)

    def _completed_first(self, request: HeldRequest, start: Callable[[], None], ours: bool) -> None:
        if ours:
            request.completed_first()
            start()
        else:
            self._host.keeping.lose(request, "superseded")

    # On the claimer's thread

    def _on_refused(self, ending: Ending) -> None:
        self._host.call_soon(self._refused, ending)

    def _on_crashed(self, crashed: list[Crashed]) -> None:
        for each in crashed:
            if each.buried:
                burial.record(self._host, each)
        self._host.call_soon(self._crashed, crashed)

    # On the loop's

    def _refused(self, ending: Ending) -> None:
        crashing = self._crashing.pop(ending.held, None)
        message_id, fence = ending.held
        logger.warning(
            "Message %d (fence %d) could not be settled (%s): it is no longer ours", message_id, fence, ending.outcome
        )
        self._host.chronicle.refused(ending, crashing[0] if crashing else None)

    def _crashed(self, crashed: list[Crashed]) -> None:
        for each in crashed:
            ours = self._crashing.pop((each.id, each.fence), None)
            if each.buried and ours is not None:
                ours[0].bury(ours[1])

    @staticmethod
    def _held(request: HeldRequest) -> Held:
        assert request.held is not None
        return request.held
