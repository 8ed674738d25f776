"""Soft and hard time limits."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

from billiard.exceptions import TimeLimitExceeded

from atomic_celery import process_tree
from atomic_celery.concurrency.deadline_page import DeadlinePage
from atomic_celery.concurrency.errand import Errand, State
from atomic_celery.concurrency.watch import Watch

logger = logging.getLogger(__name__)


class Limits:
    """Watches the time of each running errand that has a limit.

    Args:
        strike: Kills the child that runs an errand, unless that has just ended.
        conclude: Takes a running errand out of the pool.
    """

    def __init__(
        self,
        watch: Watch,
        page: DeadlinePage,
        strike: Callable[[Errand, int], bool],
        conclude: Callable[[Errand], None],
    ) -> None:
        self._watch, self._page, self._strike, self._conclude = watch, page, strike, conclude

    def start(self, errand: Errand) -> None:
        """Count from now on."""
        if errand.soft_timeout_s:
            errand.timer = self._watch.later(errand.soft_timeout_s, self.soft, errand)
        elif errand.timeout_s:
            errand.timer = self._watch.later(errand.timeout_s, self.hard, errand)

    def stop(self, errand: Errand) -> None:
        """Stop counting."""
        if errand.timer is not None:
            errand.timer.cancel()
            errand.timer = None

    def soft(self, errand: Errand) -> None:
        """Interrupt *errand*, which may clean up until its hard limit."""
        if errand.state is not State.RUNNING or errand.link is None:
            return
        if errand.timeout_s:
            rest_s = max(0.0, errand.timeout_s - (errand.soft_timeout_s or 0.0))
            errand.timer = self._watch.later(rest_s, self.hard, errand)
        errand.time_out(soft=True)
        self._page.mark_soft(errand.entry)
        process_tree.send(errand.link.pid, signal.SIGUSR1)

    def hard(self, errand: Errand) -> None:
        """End the child that runs *errand*, and say so."""
        if errand.state is not State.RUNNING or not self._strike(errand, signal.SIGKILL):
            return
        self._conclude(errand)
        errand.fail_with(TimeLimitExceeded(errand.timeout_s))
        errand.time_out(soft=False)
