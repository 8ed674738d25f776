"""How many connections a fleet may need of its PostgreSQL server, and what to set there. Pure: knows no database.

What each kind of process keeps open is an upper bound that tests hold real processes to. A child of a pool opens one
only for what its task sends or asks itself; one more when that waits for results, which this cannot know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PER_HOST = 4
"""Claims, renewals, the doorbell, remote control; and one for each slot."""
PER_CONTROLLER = 2
PER_METRICS = 1
PER_BEAT = 2

_CONTROLLERS, _METRICS, _BEATS = 2, 1, 2  # what a fleet usually runs: one of each, and one that stands by
_SPARE = 0.2
"""For publishers, operators, and processes that overlap while they are replaced."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a fleet may need at most."""

    now: int
    """The hosts that are registered."""
    grown: int
    """As many hosts as the policy allows, all of its size; the registered ones where they are more."""
    beside: int
    """Controllers, metrics, beat."""

    @property
    def needed(self) -> int:
        """All of it, and a fifth to spare."""
        return round((max(self.now, self.grown) + self.beside) * (1 + _SPARE))


def budget(slots: Sequence[int], *, max_hosts: int, workers_per_host: int) -> Budget:
    """Return what a fleet may need whose registered hosts have *slots*."""
    return Budget(
        now=sum(PER_HOST + each for each in slots),
        grown=max_hosts * (PER_HOST + workers_per_host),
        beside=_CONTROLLERS * PER_CONTROLLER + _METRICS * PER_METRICS + _BEATS * PER_BEAT,
    )
