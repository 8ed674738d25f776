"""What becomes of tasks that run here when their root is cancelled: they may end by themselves, for a while."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING

from celery.worker import state

from atomic_celery.worker.revoking import withdraw

if TYPE_CHECKING:
    from atomic_celery.store.records import Held
    from atomic_celery.worker.host import Host

logger = logging.getLogger(__name__)


class Cancelling:
    """Ends the tasks of cancelled roots whose grace is over."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def look(self) -> None:
        """See whose root is cancelled. On the keeper's thread.

        Raises:
            StoreUnavailable: It will be seen the next time.
        """
        for held, is_over in self._host.store.roots.cancelled_here(self._host.holder).items():
            self._host.call_soon(self._end, held, is_over)

    def _end(self, held: Held, is_over: bool) -> None:
        """Let what has not begun not begin, and kill what goes on. On the loop's thread."""
        request = self._host.roll.find(held)
        if request is None:
            return
        state.revoked.add(request.id)
        withdraw(self._host, request)
        if is_over and request.phase == "running":
            logger.warning("%s[%s] is killed: its root is cancelled", request.name, request.id)
            request.terminate(self._host.pool, signal=signal.SIGKILL)
