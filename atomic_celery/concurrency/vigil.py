"""What watches over a child from within.

A child must not outlive its lease even when its host is frozen, nor its host. So it looks at the clocks itself, before
each task and, while one runs, on a thread of its own. A thread is no fence: the database still refuses what comes too
late; and where a task keeps the thread from running, a dead host's undertaker ends it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading

from atomic_celery import process_tree
from atomic_celery.clock import SystemClock
from atomic_celery.concurrency.deadline_page import NO_ENTRY, DeadlinePage

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
REAP_EVERY_S = 60.0


class Vigil:
    """Ends this process, and all it started, when it runs a task whose lease is over, and when its host is dead.

    Attributes:
        entry: The deadline of what runs now; `NO_ENTRY` in between.
    """

    def __init__(self, page: DeadlinePage, host_pid: int) -> None:
        self.entry = NO_ENTRY
        self._page, self._host_pid = page, host_pid
        self._clock = SystemClock()
        self._reap_at = self._clock.now().later(REAP_EVERY_S)
        self._unclaimed: set[int] = set()
        self._never = threading.Event()

    def start(self) -> None:
        """Watch from now on, until the process ends."""
        threading.Thread(target=self._watch, name="atomic-vigil", daemon=True).start()

    def trusts(self, entry: int) -> bool:
        """Whether the lease of the message with this entry may still be acted on."""
        return entry == NO_ENTRY or not self._page.until(entry).reached(self._clock.now())

    def _watch(self) -> None:
        while not self._never.wait(LOOK_EVERY_S):
            entry = self.entry
            # a second look: the task may have ended, and its entry gone to another message, since the first
            if not self.trusts(entry) and self.entry == entry:
                self._end("The lease of the running task is over")
            if os.getppid() != self._host_pid:
                self._end("The host is dead")
            if self._reap_at.reached(now := self._clock.now()):
                self._reap_at = now.later(REAP_EVERY_S)
                self._reap_adopted()

    def _end(self, reason: str) -> None:
        logger.error("%s; this process and all it started end now", reason)
        process_tree.kill_descendants()
        process_tree.send_group(0, signal.SIGKILL)

    def _reap_adopted(self) -> None:
        """Bury orphans. A task asks for its own children sooner than a whole turn after they died."""
        dead = process_tree.zombies()
        for pid in dead & self._unclaimed:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._unclaimed = dead - self._unclaimed
