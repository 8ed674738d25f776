"""Giving back what this host claimed ahead and cannot begin soon, because tasks turned out longer than before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atomic_celery.worker.requests import HeldRequest

if TYPE_CHECKING:
    from atomic_celery.worker.host import Host

LOOK_EVERY_S = 0.25


class Hoarding:
    """Looks at the pool again and again; what was too much twice in a row goes to other hosts."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._was_stuck = False

    def watch(self, hub: Any) -> None:
        """Look from now on, as long as *hub* runs."""
        hub.call_repeatedly(LOOK_EVERY_S, self.look)

    def look(self) -> None:
        """Give back what waits in vain."""
        pool = self._host.pool
        stuck = pool.backlog() > 0 and pool.free_slots() == 0 and pool.appetite() == 0
        if stuck and self._was_stuck:
            give_back(pool.take_surplus())
        self._was_stuck = stuck


def give_back(jobs: list[Any]) -> None:
    """Release the messages of jobs that have left the pool without having begun."""
    for job in jobs:
        if isinstance(job.request, HeldRequest):
            job.request.give_back()
