"""Where every job is, and how it moves: waiting → sent → running → over, and back while it has not begun."""

from __future__ import annotations

import pickle
import signal as signals
from collections.abc import Callable
from typing import Any

from billiard.common import human_status
from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated, WorkerLostError
from billiard.pool import MaybeEncodingError

from atomic_celery import clock
from atomic_celery.concurrency import process_tree, wire
from atomic_celery.concurrency.backlog import Backlog
from atomic_celery.concurrency.crew import Crew, Rules
from atomic_celery.concurrency.deadline_page import NO_ENTRY, DeadlinePage
from atomic_celery.concurrency.job import Job, State
from atomic_celery.concurrency.limits import Limits
from atomic_celery.concurrency.link import Link
from atomic_celery.concurrency.pace import LINGER_S, Pace
from atomic_celery.concurrency.watch import Watch

_DEAL_EVERY = 32  # jobs: a long batch of new ones must not keep idle children waiting for its end


class Ledger:
    """The jobs of a pool and the children that run them.

    Attributes:
        on_unstarted: Called with jobs that left without having begun; their callbacks are never called.
        on_room: Called when there may be room for more jobs than before.
        fair: Whether what waits in a child behind a long task is taken back.
    """

    def __init__(self, size: int, rules: Rules, page: DeadlinePage, watch: Watch, *, fair: bool) -> None:
        self.on_unstarted: Callable[[list[Job]], None] = lambda _jobs: None
        self.on_room: Callable[[], None] = lambda: None
        self.fair = fair
        self.pace = Pace()
        self.backlog = Backlog(page, self.pace)
        self.crew = Crew(size, rules, page, watch, self)
        self._page, self._watch = page, watch
        self.limits = Limits(watch, page, self._strike_late, self._conclude)
        self._relief_due = self._room_grew = False
        self._tick_s = clock.monotonic_s()

    # -- out to the children

    def add(self, job: Job) -> None:
        """Let *job* wait for a child."""
        self.backlog.add(job)
        if len(self.backlog) % _DEAL_EVERY == 0:
            self._deal()

    def tick(self) -> None:
        """Give waiting jobs to children. To be called in each turn of the loop, after all has been read."""
        self._tick_s = clock.monotonic_s()
        self._deal()

    def _deal(self) -> None:
        self.backlog.deal(self.crew.links, self._tick_s, self.crew.flush)
        if self.fair and not self._relief_due and any(link.queue for link in self.crew.links):
            self._relief_due = True
            self._watch.later(LINGER_S, self._relieve)

    def _relieve(self) -> None:
        """Take back what has waited in a child for too long; whoever is free gets it.

        A job that waits for nothing but its own bytes is left alone, however many those are.
        """
        self._relief_due = False
        for link in list(self.crew.links):
            self.crew.listen(link)
            if link.running and link.queue and link.queue[0].given_s <= clock.monotonic_s() - LINGER_S:
                self.recall(link)
        self.tick()

    def running_s(self) -> float:
        """Return for how long the job that began last has been running; 0.0 when none is."""
        return min((self._tick_s - job.began_s for link in self.crew.links if (job := link.running)), default=0.0)

    # -- back from the children

    def recall(self, link: Link) -> None:
        """Take back what a child has not begun."""
        if link.queue:
            self.backlog.put_back(link.recall())
            self.crew.flush(link)

    def recall_all(self) -> list[Job]:
        """Take every job that has not begun out of the pool; oldest first, callbacks not called."""
        for link in self.crew.links:
            self.recall(link)
        return self.backlog.clear()

    def take_newest(self, count: int) -> list[Job]:
        """Take the *count* newest jobs that have not begun out of the pool; oldest first, callbacks not called."""
        for link in self.crew.links:
            self.recall(link)
        return [job for job in list(self.backlog)[-count:] if self.backlog.remove(job)]

    def take_back(self, job: Job) -> bool:
        """Take *job* out of the pool, callbacks not called; False when it has begun."""
        if job.state is State.SENT and job.link is not None:
            self.recall(job.link)
        return self.backlog.remove(job)

    def hand_over(self, jobs: list[Job]) -> None:
        """Pass jobs that will not begin here to whoever wants to know."""
        if jobs:
            self.on_unstarted(jobs)

    def cancel(self, job: Job) -> None:
        """End *job* as terminated if it has not begun."""
        if self.take_back(job):
            job.fail_with(Terminated(job.terminated or 0))

    def abandon(self) -> None:
        """Take the running jobs out of the pool too, callbacks not called: their children are about to be killed."""
        for link in self.crew.links:
            if link.running is not None:
                self._conclude(link.running)

    def kill(self, job: Job, signum: int = signals.SIGKILL) -> None:
        """End *job* as terminated, wherever it is, with every process it started."""
        job.terminate(signum)
        self.strike(job, signum)

    def strike(self, job: Job, signum: int) -> bool:
        """Signal the child that runs *job*; False when it runs something else by now, or soon may.

        Once every token is back the child can begin nothing else. If one is missing, the child has begun another
        job, so this one is over and the news of it on its way.
        """
        link = job.link
        if link is None or job.state is not State.RUNNING:
            return False
        self.recall(link)
        if link.queue:
            return False
        link.held = True
        if signum == signals.SIGKILL:
            process_tree.kill(link.pid)
        else:
            process_tree.send(link.pid, signum)
        return True

    def _strike_late(self, job: Job, signum: int) -> bool:
        """Strike for a time limit: a result that has arrived in the meantime counts."""
        if job.link is not None:
            self.crew.listen(job.link)
        return self.strike(job, signum)

    # -- what children say

    def on_frame(self, link: Link, frame: wire.Frame) -> None:
        """Act on what a child has said."""
        if frame.kind == wire.BEGAN:
            self._on_began(link, frame.at_s)
        elif frame.kind == wire.ENDED:
            self._on_ended(link, frame)
        elif frame.kind == wire.UP:
            self.crew.saw_up(link)
            self._room_grew = True
        elif frame.kind == wire.REFUSED:
            job = link.queue.popleft()
            self._conclude(job)
            self.hand_over([job])
        elif frame.kind == wire.LEAVING:
            link.leaving = True
            self.recall(link)

    def on_turn(self) -> None:
        """Say once for all that was read that there is room again."""
        if self._room_grew:
            self._room_grew = False
            self.on_room()

    def _on_began(self, link: Link, at_s: float) -> None:
        job = link.running = link.queue.popleft()
        job.state, job.began_s, job.payload = State.RUNNING, at_s, b""
        self.limits.start(job)
        job.accept(link.pid, clock.awake_s(at_s))
        if job.terminated is not None and not link.held:
            self.strike(job, job.terminated)

    def _on_ended(self, link: Link, frame: wire.Frame) -> None:
        job = link.running
        link.running, link.held = None, False
        self._room_grew = True
        if job is None:  # it was concluded when its time was over
            return
        self.pace.saw(frame.at_s - job.began_s)
        self._conclude(job)
        succeeded, value, job.outbox = _unpickled(frame.payload)
        if succeeded:
            job.succeed(value)
        else:
            job.fail(value)

    def _conclude(self, job: Job) -> None:
        self.limits.stop(job)
        self._page.close(job.entry, job.lease)
        if job.link is not None and job.link.running is job:
            job.link.running = None
        job.link, job.entry, job.state = None, NO_ENTRY, State.OVER

    def on_gone(self, link: Link, running: Job | None, unbegun: list[Job], exitcode: int) -> None:
        """Give a dead child's jobs to others, but for the one it ran: that is lost, or was ended on purpose."""
        self.backlog.put_back(unbegun)
        for job in unbegun:
            if job.terminated is not None:
                self.cancel(job)
        if not self.crew.growing:
            self.hand_over(self.backlog.clear())
        if running is not None:
            self._conclude(running)
            running.fail_with(
                Terminated(-exitcode)
                if link.held
                else WorkerLostError(f"Worker exited prematurely: {human_status(exitcode)} Job: {running.ticket}.")
            )


def _unpickled(payload: bytes) -> tuple[bool, Any, list[Any] | None]:
    try:
        succeeded, value, outbox = pickle.loads(payload)
    except Exception as error:
        try:
            raise MaybeEncodingError(error, payload[:100])
        except MaybeEncodingError:
            return False, ExceptionInfo(), None
    return succeeded, value, outbox
