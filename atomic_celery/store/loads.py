"""How much work there is and who does it: what the scaling signal is made of. Bounded, and never a write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atomic_celery.store.database import Noun


@dataclass(frozen=True, slots=True)
class Work:
    """What there is to do, in every queue but temporary ones. A count that is above its bound is a lower bound."""

    waiting: int
    """Ready messages, and delayed ones that are due: they become ready as soon as a host looks."""
    running: int
    """Messages that somebody holds, those that have lapsed among them."""
    lapsed: int
    """Messages whose lease ran out and that nobody has reclaimed yet."""
    waiting_since_ms: int | None
    """Since when the message has been waiting that is first in line for longest."""
    now_ms: int


class Gate(NamedTuple):
    """Messages that wait at one gate, and how many each of its limits lets through now."""

    queue_id: int
    lane: str
    waiting: int
    """Counted no further than the bound, and than either limit lets through."""
    limit_id: int | None
    room: int | None
    root_limit_id: int | None
    root_room: int | None


@dataclass(frozen=True, slots=True)
class Gates:
    """Some gates, in the order of their queues' lanes."""

    looked: int
    """At how many was looked."""
    passable: Sequence[Gate]
    """Those of them that let something through."""
    after: Mapping[int, str]
    """The lane of each queue, by its id, up to which was looked by now."""


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
        waiting, running, lapsed, ready_since_ms, due_since_ms, now_ms = row
        since = [at_ms for at_ms in (ready_since_ms, due_since_ms) if at_ms is not None]
        return Work(int(waiting), running, int(lapsed), min(since, default=None), now_ms)

    def gated(self, queues: Sequence[str] | None, bound: int, gates: int, after: Mapping[int, str]) -> Gates:
        """Look at the next gates of these queues, or of all: at fewer than *gates* when these are the last.

        Args:
            queues: Their names; None: all but temporary ones.
            bound: Where counting the messages at one gate stops.
            gates: At how many of them to look.
            after: The lane of each queue, by its id, up to which was looked already.
        """
        names = None if queues is None else list(queues)
        rows = self._many("gated", queues=names, bound=bound, gates=gates, after=json.dumps(after))
        found = [
            Gate(queue_id, lane, int(waiting), limit_id, _count(room), root_limit_id, _count(root_room))
            for queue_id, lane, waiting, limit_id, room, root_limit_id, root_room, _ in rows
        ]
        last = dict(after)
        for gate in found:
            last[gate.queue_id] = max(gate.lane, last.get(gate.queue_id, ""))
        return Gates(rows[0][-1] if rows else 0, [gate for gate in found if gate.waiting > 0], last)

    def slots(self, stale_ms: int) -> Slots:
        """Count the hosts that have reported within *stale_ms*, and their slots."""
        [row] = self._many("slots", stale_ms=stale_ms)
        return Slots(*map(int, row))

    def holders(self) -> frozenset[str]:
        """Return the ids of all who hold a message."""
        return frozenset(row[0] for row in self._many("holders"))


def _count(value: object) -> int | None:
    return None if value is None else int(str(value))  # a sum is a Decimal with some drivers
