"""The scaling signal as it was a moment ago: read at most so often, however many ask, whether it succeeds or not."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atomic_celery import clock, errors, trouble
from atomic_celery.fleet import scaling

if TYPE_CHECKING:
    from atomic_celery.fleet.policy import Policy
    from atomic_celery.fleet.scaling import Scaling
    from atomic_celery.store.store import Store

READ_AT_MOST_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look at the database came to."""

    scaling: Scaling | None
    error: str | None


class Reader:
    """Reads the signal. Safe from any thread; never writes."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        queues: Sequence[str] | None = None,
        *,
        every_s: float = READ_AT_MOST_EVERY_S,
    ) -> None:
        self._store, self._policy, self._queues, self._every_s = store, policy, queues, every_s
        self._reading_now = threading.Lock()
        self._last: Reading | None = None
        self._next_at_s = 0.0
        self.reads_count = self.failures_count = 0
        self.took_s = 0.0

    def read(self) -> Reading:
        """Return the last reading, or a new one if that is too old. Never raises."""
        with self._reading_now:
            if self._last is None or clock.monotonic_s() >= self._next_at_s:
                self._last = self._read()
                self._next_at_s = clock.monotonic_s() + self._every_s
            return self._last

    def _read(self) -> Reading:
        began_s = clock.monotonic_s()
        self.reads_count += 1
        try:
            with trouble.bounded(self._store):
                self._store.schema.require()
                seen, error = scaling.read(self._store, self._policy, self._queues), None
        except errors.StoreError as failure:
            self.failures_count += 1
            seen, error = None, str(failure)
        self.took_s += clock.monotonic_s() - began_s
        return Reading(seen, error)
