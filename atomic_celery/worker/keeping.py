"""What follows for a worker's tasks when its leases are renewed, run out or are taken."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, Any

from atomic_celery.clock import Moment, SystemClock
from atomic_celery.concurrency.deadline_page import LONG_AGO, DeadlinePage
from atomic_celery.lease import Lease, LeaseKeeper, Reason
from atomic_celery.worker.requests import HeldRequest

if TYPE_CHECKING:
    from atomic_celery.store.records import Held
    from atomic_celery.worker.host import Host

logger = logging.getLogger(__name__)


class Keeping:
    """Tells the pool's children until when they may go on, and ends those that may not.

    A child watches its own deadline, so what has to be quick and certain is written into the shared page on the
    keeper's thread; the loop only tidies up behind it.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._clock = SystemClock()
        self._page: DeadlinePage | None = None
        self.keeper = LeaseKeeper(
            host.store, host.holder, host.settings, on_lost=self._on_lost, on_renewed=self._on_renewed
        )

    def attach(self, page: DeadlinePage) -> None:
        """Publish the deadlines of all leases in *page* from now on."""
        self._page = page
        page.trusted_until = self.trusted_until

    def trusts(self, held: Held) -> bool:
        """Whether acting under that lease is still safe. From any thread."""
        return not self.trusted_until(*held).reached(self._clock.now())

    def trusted_until(self, message_id: int, fence: int) -> Moment:
        """Return until when that lease may be trusted; long ago, when it is not held. From any thread."""
        lease = self.keeper.find(message_id)
        return lease.trusted_until if lease is not None and lease.fence == fence else LONG_AGO

    def _on_renewed(self, leases: list[Lease]) -> None:
        if self._page is not None:
            for lease in leases:
                self._page.set(lease.message_id, lease.fence, lease.trusted_until)

    def _on_lost(self, lease: Lease, reason: Reason) -> None:
        if self._page is not None:
            self._page.revoke(lease.message_id, lease.fence)
        self._host.call_soon(self._lost, (lease.message_id, lease.fence), reason)

    def _lost(self, held: Held, reason: Reason) -> None:
        request = self._host.roll.find(held)
        if request is not None:
            self.lose(request, reason)

    def lose(self, request: HeldRequest, reason: str) -> None:
        """Stop a request that is no longer ours, wherever it is, and forget it. On the loop's thread."""
        logger.error("Task %s[%s] is lost: its lease is %s", request.name, request.id, reason)
        request.give_up()
        self._host.chronicle.lost(request, reason)
        errand: Any = request.errand
        if self._host.is_contained and errand is not None:
            self._host.pool.kill(errand)
        elif request.phase == "running":
            self._kill_process(request)

    def _kill_process(self, request: HeldRequest) -> None:
        try:
            self._host.pool.terminate_job(request.worker_pid, signal.SIGKILL)
        except NotImplementedError:
            logger.error("This pool cannot stop a task; what %s still does is refused by the database", request.id)
