"""Soft and hard time limits."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

from billiard.exceptions import TimeLimitExceeded

from atomic_celery.concurrency import process_tree
from atomic_celery.concurrency.deadline_page import DeadlinePage
from atomic_celery.concurrency.job import Job, State
from atomic_celery.concurrency.watch import Watch

logger = logging.getLogger(__name__)


class Limits:
    """Watches the time of each running job that has a limit.

    Args:
        strike: Kills the child that runs a job, unless that has just ended.
        conclude: Takes a running job out of the pool.
    """

    def __init__(
        self,
        watch: Watch,
        page: DeadlinePage,
        strike: Callable[[Job, int], bool],
        conclude: Callable[[Job], None],
    ) -> None:
        self._watch, self._page, self._strike, self._conclude = watch, page, strike, conclude

    def start(self, job: Job) -> None:
        """Count from now on."""
        if job.soft_timeout_s:
            job.timer = self._watch.later(job.soft_timeout_s, self.soft, job)
        elif job.timeout_s:
            job.timer = self._watch.later(job.timeout_s, self.hard, job)

    def stop(self, job: Job) -> None:
        """Stop counting."""
        if job.timer is not None:
            job.timer.cancel()
            job.timer = None

    def soft(self, job: Job) -> None:
        """Interrupt *job*, which may clean up until its hard limit."""
        if job.state is not State.RUNNING or job.link is None:
            return
        if job.timeout_s:
            rest_s = max(0.0, job.timeout_s - (job.soft_timeout_s or 0.0))
            job.timer = self._watch.later(rest_s, self.hard, job)
        job.time_out(soft=True)
        self._page.mark_soft(job.entry)
        process_tree.send(job.link.pid, signal.SIGUSR1)

    def hard(self, job: Job) -> None:
        """End the child that runs *job*, and say so."""
        if job.state is not State.RUNNING or not self._strike(job, signal.SIGKILL):
            return
        self._conclude(job)
        job.fail_with(TimeLimitExceeded(job.timeout_s))
        job.time_out(soft=False)
