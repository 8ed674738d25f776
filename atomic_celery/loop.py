"""The one shape every background loop has: start, wake, stop; joined, and never waiting out a sleep."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Loop:
    """A daemon thread that calls *turn* again and again, at least every *interval_s* seconds.

    *turn* may return how many seconds to wait before the next one; None means *interval_s*. An exception is
    logged and does not end the loop: whatever it could not do, the next turn tries again.
    """

    def __init__(self, name: str, turn: Callable[[], float | None], *, interval_s: float) -> None:
        self._turn, self._interval_s = turn, interval_s
        self._stopping, self._awake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. A second call does nothing."""
        if not self._thread.is_alive() and not self._stopping.is_set():
            self._thread.start()

    def wake(self) -> None:
        """Make the next turn come now. Safe from any thread."""
        self._awake.set()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Ask for the end and wait for it; True once the thread is gone. Safe to repeat."""
        self._stopping.set()
        self._awake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Whether the end was asked for."""
        return self._stopping.is_set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._awake.clear()
            wait_s = self._turn_logging_errors()
            if not self._stopping.is_set():
                self._awake.wait(self._interval_s if wait_s is None else wait_s)

    def _turn_logging_errors(self) -> float | None:
        try:
            return self._turn()
        except Exception:
            logger.exception("%s: a turn failed; the next one goes on", self._thread.name)
            return None
