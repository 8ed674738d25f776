"""Jobs that wait in the host, and how they are dealt out to children."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from atomic_celery import clock
from atomic_celery.concurrency.deadline_page import NO_ENTRY, DeadlinePage
from atomic_celery.concurrency.job import Job, State
from atomic_celery.concurrency.link import Link
from atomic_celery.concurrency.pace import LINGER_S, Pace


class Backlog:
    """First in, first out; a job that was taken back from a child comes first again."""

    def __init__(self, page: DeadlinePage, pace: Pace) -> None:
        self._page, self._pace = page, pace
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def add(self, job: Job) -> None:
        """Let *job* wait behind all others."""
        self._jobs.append(job)

    def put_back(self, jobs: Iterable[Job]) -> None:
        """Let *jobs*, which a child had and has not begun, wait before all others, in their old order."""
        for job in sorted(jobs, key=lambda job: job.ticket, reverse=True):
            self._page.close(job.entry, job.lease)
            job.link, job.entry, job.state = None, NO_ENTRY, State.WAITING
            self._jobs.appendleft(job)

    def remove(self, job: Job) -> bool:
        """Take *job* out; False when it does not wait here."""
        if job.state is not State.WAITING:
            return False
        self._jobs.remove(job)
        job.state = State.OVER
        return True

    def clear(self) -> list[Job]:
        """Take all out, oldest first."""
        jobs = list(self._jobs)
        self._jobs.clear()
        for job in jobs:
            job.state = State.OVER
        return jobs

    def deal(self, links: Sequence[Link], heard_s: float, flush: Callable[[Link], None]) -> None:
        """Give waiting jobs to children: evenly, and to none more than it can begin soon.

        Args:
            heard_s: When the host last knew what children do.
        """
        free = sorted((link for link in links if link.open), key=lambda link: link.load)
        if not free or not self._jobs:
            return
        now_s, depth = clock.monotonic_s(), self._pace.depth()
        share = -(-(sum(link.load for link in free) + len(self._jobs)) // len(free))
        for link in free:
            most = min(share, 1 + (0 if _lingers(link, heard_s) else depth)) - link.load
            if link.room is not None:
                most = min(most, link.room)
            for _ in range(min(most, len(self._jobs))):
                job = self._jobs.popleft()
                entry = self._page.open(job.lease) if _needs_entry(job) else NO_ENTRY
                link.give(job, entry, now_s)
            if most > 0:
                flush(link)


def _lingers(link: Link, heard_s: float) -> bool:
    """Whether it has been busy with one job for so long that nothing should wait for that."""
    return link.running is not None and heard_s - link.running.began_s > LINGER_S


def _needs_entry(job: Job) -> bool:
    return job.lease is not None or job.soft_timeout_s is not None
