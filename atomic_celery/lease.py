"""What this host holds, and until when it may trust that.

A lease is trusted until the moment *before* the claim or renewal was sent, plus the lease, less a
margin, by both local clocks: however slow the answer was, the database gives the message away only
later. Nobody else in the package computes such a moment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from atomic_celery import errors
from atomic_celery.clock import NEVER, Clock, Moment, SystemClock
from atomic_celery.loop import Loop

if TYPE_CHECKING:
    from atomic_celery.config import Settings
    from atomic_celery.store.records import Holder, Renewal
    from atomic_celery.store.store import Store

logger = logging.getLogger(__name__)

Reason = Literal["superseded", "expired"]

ANSWER_WITHIN_S = 3.0
RETRY_AFTER_S = 0.5


@dataclass(frozen=True, slots=True)
class Lease:
    """A holder's time-bounded right to one message, and the proof of it."""

    message_id: int
    fence: int
    trusted_until: Moment

    def trusted(self, clock: Clock) -> bool:
        """Whether acting on this lease is still safe without asking the store."""
        return not self.trusted_until.reached(clock.now())


def trusted_until(asked_at: Moment, settings: Settings) -> Moment:
    """Return until when a claim or renewal sent at *asked_at* and confirmed may be trusted."""
    return asked_at.later(settings.lease_s - settings.lease_margin_s)


def _ignore(*_: object) -> None:
    """Do nothing about it."""


class LeaseKeeper:
    """Renews everything a host holds, on a thread and a connection of its own.

    The verdict of a renewal is taken message by message: *renewed* moves its end, *lost* ends it at
    once, no answer changes nothing, and is asked again without delay until the lease's own end.

    Three calls are made, on the keeper's thread or that of who claims, and may be replaced until it is started:
        on_lost: with each lease that ended under its holder, and why.
        on_renewed: with the successors of the leases that were renewed.
        beside: what else this thread does (the host's report); returns seconds until it wants to
            be called again. A failure of it never costs a renewal.
    """

    def __init__(
        self,
        store: Store,
        holder: Holder,
        settings: Settings,
        *,
        clock: Clock | None = None,
        on_lost: Callable[[Lease, Reason], None] = _ignore,
        on_renewed: Callable[[list[Lease]], None] = _ignore,
        beside: Callable[[], float] | None = None,
    ) -> None:
        self._store, self._holder, self._settings = store, holder, settings
        self._clock = clock or SystemClock()
        self.on_lost, self.on_renewed, self.beside = on_lost, on_renewed, beside
        self._held: dict[int, Lease] = {}
        self._lock = threading.Lock()
        self._renew_at = self._clock.now().later(settings.renew_every_s)
        self._beside_at = self._clock.now()
        self._loop = Loop("atomic-leases", self.turn, interval_s=settings.renew_every_s)

    def start(self) -> None:
        """Start renewing."""
        self._loop.start()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Stop renewing; what is still held runs out by itself."""
        return self._loop.stop(timeout_s)

    def wake(self) -> None:
        """Make `beside` be called now instead of at its time."""
        self._beside_at = self._clock.now()
        self._loop.wake()

    def hold(self, leases: Iterable[Lease]) -> None:
        """Renew *leases* from now on. Whoever gets a message anew has lost the lease it had on it."""
        superseded = []
        with self._lock:
            for lease in leases:
                before = self._held.get(lease.message_id)
                if before is not None and before.fence < lease.fence:
                    superseded.append(before)
                if before is None or before.fence <= lease.fence:
                    self._held[lease.message_id] = lease
        for lease in superseded:
            self.on_lost(lease, "superseded")

    def let_go(self, message_ids: Iterable[int]) -> None:
        """Renew these no more, and never call them lost. To be said *before* they are settled."""
        with self._lock:
            for message_id in message_ids:
                self._held.pop(message_id, None)

    def held(self) -> list[Lease]:
        """Return what is held at this moment."""
        with self._lock:
            return list(self._held.values())

    def find(self, message_id: int) -> Lease | None:
        """Return the lease of a message as it was last confirmed; None when it is not held."""
        return self._held.get(message_id)

    def turn(self) -> float:
        """Drop what ran out, renew what is due, report; return seconds until the next turn."""
        self._drop_expired()
        if self._renew_at.reached(self._clock.now()):
            self._renew_at = self._renew()
            self._drop_expired()
        if self.beside is not None and self._beside_at.reached(self._clock.now()):
            self._beside_at = self._clock.now().later(self._do_beside(self.beside))
        return self._seconds_until_next()

    def _renew(self) -> Moment:
        """Renew all; return when to do it again."""
        held, asked_at = self.held(), self._clock.now()
        if not held:
            return asked_at.later(self._settings.renew_every_s)
        try:
            with self._store.deadline(self._patience_s(held, asked_at)):
                answer = self._store.messages.renew(
                    self._holder,
                    [(lease.message_id, lease.fence) for lease in held],
                    self._settings.lease_ms,
                )
        except errors.StoreError as error:
            logger.warning("%d leases could not be renewed yet: %s", len(held), error)
            return self._clock.now().later(RETRY_AFTER_S)
        self._take(answer, held, asked_at)
        return asked_at.later(RETRY_AFTER_S if answer.unconfirmed else self._settings.renew_every_s)

    def _patience_s(self, held: list[Lease], now: Moment) -> float:
        """Seconds to wait for an answer: short, and not beyond the first lease's end."""
        first_end_s = min(lease.trusted_until.seconds_from(now) for lease in held)
        return max(0.1, min(ANSWER_WITHIN_S, first_end_s))

    def _take(self, answer: Renewal, asked: list[Lease], asked_at: Moment) -> None:
        until = trusted_until(asked_at, self._settings)
        renewed, lost = [], []
        with self._lock:
            for lease in asked:
                if self._held.get(lease.message_id) is not lease:
                    continue  # settled, or claimed anew, while the answer was under way
                if lease.message_id in answer.renewed:
                    self._held[lease.message_id] = replace(lease, trusted_until=until)
                    renewed.append(self._held[lease.message_id])
                elif lease.message_id in answer.lost:
                    lost.append(self._held.pop(lease.message_id))
        self.on_renewed(renewed)
        for lease in lost:
            self.on_lost(lease, "superseded")

    def _drop_expired(self) -> None:
        """End the leases whose time is over here, whatever the database would say."""
        now = self._clock.now()
        with self._lock:
            expired = [lease for lease in self._held.values() if lease.trusted_until.reached(now)]
            for lease in expired:
                del self._held[lease.message_id]
        for lease in expired:
            self.on_lost(lease, "expired")

    def _do_beside(self, beside: Callable[[], float]) -> float:
        try:
            with self._store.deadline(ANSWER_WITHIN_S):
                return beside()
        except errors.StoreError as error:
            logger.debug("the host's report did not get through: %s", error)
            return self._settings.report_every_s

    def _seconds_until_next(self) -> float:
        now = self._clock.now()
        moments = [self._renew_at, self._beside_at if self.beside else NEVER]
        moments += [lease.trusted_until for lease in self.held()]
        return max(0.0, min(moment.seconds_from(now) for moment in moments))
