"""Giving back what this host claimed ahead and cannot begin soon, because tasks turned out longer than before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atomic_celery.worker.requests import HeldRequest

if TYPE_CHECKING:
    from atomic_celery.worker.host import Host

LOOK_EVERY_S = 0.25
STALLED_AFTER_S = 0.5


class Hoarding:
    """Looks at the pool again and again; what waits behind tasks that take their time goes to other hosts."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def watch(self, hub: Any) -> None:
        """Look from now on, as long as *hub* runs."""
        hub.call_repeatedly(LOOK_EVERY_S, self.look)

    def look(self) -> None:
        """Give back what waits in vain."""
        pool = self._host.pool
        if pool.stalled_s() > STALLED_AFTER_S:
            give_back(pool.take_surplus())


def give_back(errands: list[Any]) -> None:
    """Release the messages of errands that have left the pool without having begun."""
    for errand in errands:
        if isinstance(errand.request, HeldRequest):
            errand.request.give_back()
