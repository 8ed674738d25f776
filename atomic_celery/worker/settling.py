"""How a worker's claims end, where Celery's acknowledgement is not the word for it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo

from atomic_celery import errors, outbox
from atomic_celery.claimer import Hooks
from atomic_celery.endings import Ending
from atomic_celery.outbox import Entry
from atomic_celery.store.records import Crashed
from atomic_celery.transport import letters
from atomic_celery.worker import burial
from atomic_celery.worker.failures import error_of

if TYPE_CHECKING:
    from atomic_celery.store.records import Held, Limit
    from atomic_celery.worker.host import Host
    from atomic_celery.worker.requests import HeldRequest

logger = logging.getLogger(__name__)

Told = Callable[[bool], None]


class Settling:
    """Ends claims through the worker's claimer, and acts on the database's verdict."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._crashing: dict[Held, tuple[HeldRequest, ExceptionInfo]] = {}
        self._verdicts: deque[tuple[Told, bool]] = deque()
        self.hooks = Hooks(
            degraded=host.chronicle.degraded,
            recovered=host.chronicle.recovered,
            refused=self._on_refused,
            crashed=self._on_crashed,
            mourn=lambda: burial.mourn(host),
        )

    def complete_first(self, request: HeldRequest, start: Callable[[], None]) -> None:
        """Complete a task that is settled early, and *start* it once the database has said that it was ours."""

        def then(ours: bool) -> None:
            self._host.call_soon(self._completed_first, request, start, ours)

        self._end(request, Ending(self._held(request), "complete", then=then))

    def complete(self, request: HeldRequest, entries: Sequence[Entry], *, then: Told | None = None) -> None:
        """Complete its message and do what it leaves to be done, together or not at all.

        Args:
            then: Told, on the loop's thread, whether it was still ours; after the commit.
        """
        self._end(request, self._completion(self._held(request), entries, then))

    def reject(self, request: HeldRequest, entries: Sequence[Entry]) -> None:
        """Complete its message likewise, and send a copy of it where its queue sends its dead letters."""
        delivery = request.message.channel.qos.get(request.message.delivery_tag)
        topology = self._host.broker.topology
        letter = letters.dead_letter(topology, delivery.held, delivery.queue, delivery.raw, "rejected").outbox
        both = (lambda: entries) if letter is None else (lambda: [*entries, *letter()])
        self._end(request, Ending(delivery.held, "complete", outbox=both, weight=outbox.weight(entries)))

    def release(self, request: HeldRequest) -> None:
        """Make its message ready for others at once; no crash is counted."""
        self._end(request, Ending(self._held(request), "release"))

    def gate(self, request: HeldRequest, limit: Limit) -> None:
        """Let its message wait for *limit*, which its publisher did not know; no crash is counted."""
        self._end(request, Ending(self._held(request), "gate", limit=limit))

    def crash(self, request: HeldRequest, exc_info: ExceptionInfo, burial: Sequence[Entry] | None) -> None:
        """Make its message ready again, or let it be buried with *burial*: its child died."""
        held = self._held(request)
        self._crashing[held] = (request, exc_info)
        self._end(request, Ending(held, "crash", reason=str(error_of(exc_info)), burial=burial))

    def refuse(self, message: Any, error: Exception) -> None:
        """Count a crash for a message that could not be received: its headers are none that Celery can read.

        It comes to rest among the dead, where an operator sees it, instead of ending one worker after the other.
        """
        logger.critical("Message %s cannot be received: %r", message.delivery_tag, error, exc_info=error)
        claim = message.properties["atomic"]
        request = self._host.roll.find((claim["id"], claim["fence"]))
        if request is not None and request.phase != "waiting":
            return  # it came as far as the pool, and ends as any other does
        delivery = message.channel.qos.forget(message.delivery_tag)
        if request is not None:
            request.give_up()
        if delivery is not None:
            self._host.claimer.settle(Ending(delivery.held, "crash", reason=f"it cannot be received: {error!r}"))

    def _completion(self, held: Held, entries: Sequence[Entry], then: Told | None) -> Ending:
        left = (lambda: entries) if entries else None
        told = None if then is None else lambda ours: self._tell(then, ours)
        return Ending(held, "complete", outbox=left, weight=outbox.weight(entries), then=told)

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

    def _tell(self, then: Told, ours: bool) -> None:
        """Let *then* be told on the loop's thread, together with all others that are settled at this moment."""
        self._verdicts.append((then, ours))
        if len(self._verdicts) == 1:
            self._host.call_soon(self._tell_all)

    def _on_refused(self, ending: Ending) -> None:
        self._host.call_soon(self._refused, ending)

    def _on_crashed(self, crashed: list[Crashed]) -> None:
        buried = [each for each in crashed if each.buried]
        for each in buried:
            burial.record(self._host, each)
        if buried:
            with suppress(errors.StoreError):  # it goes on another time, here or elsewhere
                burial.mourn(self._host)
        self._host.call_soon(self._crashed, crashed)

    # On the loop's

    def _tell_all(self) -> None:
        while self._verdicts:
            then, ours = self._verdicts.popleft()
            then(ours)

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
