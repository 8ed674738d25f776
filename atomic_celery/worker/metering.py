"""What one worker does, served over HTTP to whoever adds it up over all of them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from celery.worker import state

from atomic_celery.fleet.exposition import WorkerExposition, Working
from atomic_celery.fleet.serving import Pages, Server

if TYPE_CHECKING:
    from atomic_celery.worker.host import Host

_LOOKS_EVERY_S = 0.2


class Metering:
    """Listens from its making on, and answers between `start` and `close`.

    Raises:
        ConfigError: The address cannot be listened on, or what it needs is not installed.
    """

    def __init__(self, host: Host, listen: str) -> None:
        self._host = host
        self._server = Server(listen, Pages(WorkerExposition(self._look)))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOKS_EVERY_S,), name="atomic-metrics", daemon=True
        )

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        return self._server.address

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()

    def _look(self) -> Working:
        """Read what others write."""
        host, load = self._host, self._host.load
        return Working(
            slots=getattr(host.pool, "num_processes", None) or host.worker.concurrency,
            busy=len(state.active_requests),
            leases=len(host.keeping.keeper.held()),
            draining=host.shutdown.draining,
            poll_failures=load.poll_failures,
            totals=load.tally.totals(),
        )
