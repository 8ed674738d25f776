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
class Gate:
    """Messages that wait at one gate, and how many each of its limits lets through now."""

    waiting: int
    """No more than the bound."""
    limit_id: int | None
    room: int | None
    root_limit_id: int | None
    root_room: int | None


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

    def gated(self, queues: Sequence[str] | None, bound: int, gates: int) -> list[Gate]:
        """Return what waits for limits in these queues, or in all: up to so many *gates* a queue."""
        names = None if queues is None else list(queues)
        rows = self._many("gated", queues=names, bound=bound, lanes=gates)
        return [Gate(row[0], row[1], _count(row[2]), row[3], _count(row[4])) for row in rows]

    def slots(self, stale_ms: int) -> Slots:
        """Count the hosts that have reported within *stale_ms*, and their slots."""
        [row] = self._many("slots", stale_ms=stale_ms)
        return Slots(*map(int, row))

    def holders(self) -> frozenset[str]:
        """Return the ids of all who hold a message."""
        return frozenset(row[0] for row in self._many("holders"))


def _count(value: object) -> int | None:
    return None if value is None else int(str(value))  # a sum is a Decimal with some drivers
