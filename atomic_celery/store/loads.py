"""How much work there is and who does it: what the scaling signal is made of. Bounded, and never a write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atomic_celery.store.database import Noun


@dataclass(frozen=True, slots=True)
class Work:
    """What there is to do, in every queue but temporary ones. A count that is above its bound is a lower bound."""

    ready: int
    due: int
    """Delayed messages that are due; they become ready as soon as a host looks."""
    running: int
    """Messages that somebody holds, those that have lapsed among them."""
    lapsed: int
    """Messages whose lease ran out and that nobody has reclaimed yet."""
    waiting_since_ms: int | None
    """Since when the message has been waiting that is first in line for longest."""
    now_ms: int


@dataclass(frozen=True, slots=True)
class Slots:
    """The hosts that reported lately."""

    hosts: int
    busy: int
    idle: int
    """Free, on hosts that do not drain."""


class Loads(Noun):
    """Reads for whoever decides how many hosts there are to be."""

    noun = "loads"

    def work(self, queues: Sequence[str] | None, bound: int) -> Work:
        """Count the work in these queues, or in all, each number up to *bound* and one more."""
        [row] = self._many("work", queues=None if queues is None else list(queues), bound=bound)
        ready, due, running, lapsed, ready_since_ms, due_since_ms, now_ms = row
        since = [at_ms for at_ms in (ready_since_ms, due_since_ms) if at_ms is not None]
        return Work(int(ready), due, running, int(lapsed), min(since, default=None), now_ms)

    def slots(self, stale_ms: int) -> Slots:
        """Count the hosts that have reported within *stale_ms*, and their slots."""
        [row] = self._many("slots", stale_ms=stale_ms)
        return Slots(*map(int, row))

    def holders(self) -> frozenset[str]:
        """Return the ids of all who hold a message."""
        return frozenset(row[0] for row in self._many("holders"))
