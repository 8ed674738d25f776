"""How a consumer goes to sleep so that whoever publishes next wakes it, and only it."""

from __future__ import annotations

import contextlib

from atomic_celery import clock, errors
from atomic_celery.store.doorbell import Doorbell
from atomic_celery.store.store import Store

ARMED_FOR_S = 120.0


class Slumber:
    """One consumer's sleep: its doorbell, and the queues at which publishers see it asleep.

    Args:
        sleeper: Its name among all consumers of the database.
    """

    def __init__(self, store: Store, sleeper: str) -> None:
        self._store, self._sleeper = store, sleeper
        self._arms = store.dialect == "postgresql" and store.settings.notify
        self._doorbell: Doorbell | None = None
        self._armed: frozenset[int] = frozenset()
        self._armed_until_s = 0.0
        self.rung = False
        """Whether the database rang; whoever hears it says so by making it false."""
        self._asleep = self._woken = False

    @property
    def listening(self) -> bool:
        """Whether a publisher would be heard."""
        return self._doorbell is not None and self._doorbell.listening

    @property
    def armed(self) -> bool:
        """Whether publishers see it asleep."""
        return bool(self._armed)

    def wake(self) -> None:
        """End the present or the next sleep. Safe from any thread."""
        self._woken = True
        if self._asleep and self._doorbell is not None:
            self._doorbell.ring()

    def sleep(self, at_most_s: float, *, keen: bool = False) -> bool:
        """Sleep until woken or rung; True if so. *keen*: a message is expected at any moment."""
        if self._doorbell is None:
            self._doorbell = self._store.doorbell(self._sleeper)
        self._asleep = True  # before looking whether we were woken: `wake` does it the other way round
        ended = self._doorbell.wait(0 if self._woken else at_most_s, keen=keen)
        self._asleep = False
        woken, self._woken = self._woken, False
        if self._doorbell.heard or (ended and not woken):
            self.rung, self._armed = True, frozenset()
        return ended or woken

    def arm(self, queue_ids: frozenset[int]) -> bool:
        """Be seen asleep at these queues and at no others; True if that is news, so that one more look is due."""
        if not self._arms or not self.listening:
            return False
        now_s = clock.monotonic_s()
        if not self._armed <= queue_ids:
            self._store.queues.disarm(self._sleeper)
            self._armed = frozenset()
        fresh = now_s < self._armed_until_s - ARMED_FOR_S / 2
        if queue_ids <= self._armed and (fresh or not queue_ids):
            return False
        self._store.queues.arm(self._sleeper, sorted(queue_ids), int(ARMED_FOR_S * 1000))
        self._armed, self._armed_until_s = queue_ids, now_s + ARMED_FOR_S
        return True

    def close(self) -> None:
        """Stop listening, and be rung no more."""
        if self._doorbell is not None:
            self._doorbell.close()
        if self._armed:
            with contextlib.suppress(errors.StoreError):
                self._store.queues.disarm(self._sleeper)
