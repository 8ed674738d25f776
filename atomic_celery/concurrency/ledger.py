"""Where every errand is, and how it moves: waiting → sent → running → over, and back while it has not begun."""

from __future__ import annotations

import pickle
import signal as signals
from collections.abc import Callable
from typing import Any

from billiard.common import human_status
from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated, WorkerLostError
from billiard.pool import MaybeEncodingError

from atomic_celery import clock, process_tree
from atomic_celery.concurrency import wire
from atomic_celery.concurrency.backlog import Backlog
from atomic_celery.concurrency.crew import Crew, Rules
from atomic_celery.concurrency.deadline_page import NO_ENTRY, DeadlinePage
from atomic_celery.concurrency.errand import Errand, State
from atomic_celery.concurrency.limits import Limits
from atomic_celery.concurrency.link import Link
from atomic_celery.concurrency.pace import LINGER_S, Pace
from atomic_celery.concurrency.watch import Watch

_DEAL_EVERY = 32  # errands: a long batch of new ones must not keep idle children waiting for its end


class Ledger:
    """The errands of a pool and the children that run them.

    Attributes:
        on_unstarted: Called with errands that left without having begun; their callbacks are never called.
        on_room: Called when there may be room for more errands than before.
        fair: Whether what waits in a child behind a long task is taken back.
    """

    def __init__(self, size: int, rules: Rules, page: DeadlinePage, watch: Watch, *, fair: bool) -> None:
        self.on_unstarted: Callable[[list[Errand]], None] = lambda _errands: None
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

    def add(self, errand: Errand) -> None:
        """Let *errand* wait for a child."""
        self.backlog.add(errand)
        if len(self.backlog) % _DEAL_EVERY == 0:
            self._deal()

    def tick(self) -> None:
        """Give waiting errands to children. To be called in each turn of the loop, after all has been read."""
        self._tick_s = clock.monotonic_s()
        self._deal()

    def _deal(self) -> None:
        self.backlog.deal(self.crew.links, self._tick_s, self.crew.flush)
        if self.fair and not self._relief_due and any(link.queue for link in self.crew.links):
            self._relief_due = True
            self._watch.later(LINGER_S, self._relieve)

    def _relieve(self) -> None:
        """Take back what has waited in a child for too long; whoever is free gets it.

        An errand that waits for nothing but its own bytes is left alone, however many those are.
        """
        self._relief_due = False
        for link in list(self.crew.links):
            self.crew.listen(link)
            if link.running and link.queue and link.queue[0].given_s <= clock.monotonic_s() - LINGER_S:
                self.recall(link)
        self.tick()

    def running_s(self) -> float:
        """Return for how long the errand that began last has been running; 0.0 when none is."""
        return min((self._tick_s - errand.began_s for link in self.crew.links if (errand := link.running)), default=0.0)

    # -- back from the children

    def recall(self, link: Link) -> None:
        """Take back what a child has not begun."""
        if link.queue:
            self.backlog.put_back(link.recall())
            self.crew.flush(link)

    def recall_all(self) -> list[Errand]:
        """Take every errand that has not begun out of the pool; oldest first, callbacks not called."""
        for link in self.crew.links:
            self.recall(link)
        return self.backlog.clear()

    def take_newest(self, count: int) -> list[Errand]:
        """Take the *count* newest errands that have not begun out of the pool; oldest first, callbacks not called."""
        for link in self.crew.links:
            self.recall(link)
        return [errand for errand in list(self.backlog)[-count:] if self.backlog.remove(errand)]

    def take_back(self, errand: Errand) -> bool:
        """Take *errand* out of the pool, callbacks not called; False when it has begun."""
        if errand.state is State.SENT and errand.link is not None:
            self.recall(errand.link)
        return self.backlog.remove(errand)

    def hand_over(self, errands: list[Errand]) -> None:
        """Pass errands that will not begin here to whoever wants to know."""
        if errands:
            self.on_unstarted(errands)

    def cancel(self, errand: Errand) -> None:
        """End *errand* as terminated if it has not begun."""
        if self.take_back(errand):
            errand.fail_with(Terminated(errand.terminated or 0))

    def abandon(self) -> None:
        """Take the running errands out of the pool too, callbacks not called: their children are about to be killed."""
        for link in self.crew.links:
            if link.running is not None:
                self._conclude(link.running)

    def kill(self, errand: Errand) -> None:
        """End *errand* as terminated, wherever it is, with every process it started."""
        errand.terminate(signals.SIGKILL)
        self.strike(errand, signals.SIGKILL)

    def strike(self, errand: Errand, signum: int) -> bool:
        """Signal the child that runs *errand*; False when it runs something else by now, or soon may.

        Once every token is back the child can begin nothing else. If one is missing, the child has begun another
        errand, so this one is over and the news of it on its way.
        """
        link = errand.link
        if link is None or errand.state is not State.RUNNING:
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

    def _strike_late(self, errand: Errand, signum: int) -> bool:
        """Strike for a time limit: a result that has arrived in the meantime counts."""
        if errand.link is not None:
            self.crew.listen(errand.link)
        return self.strike(errand, signum)

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
            errand = link.queue.popleft()
            self._conclude(errand)
            self.hand_over([errand])
        elif frame.kind == wire.LEAVING:
            link.leaving = True
            self.recall(link)

    def on_turn(self) -> None:
        """Say once for all that was read that there is room again."""
        if self._room_grew:
            self._room_grew = False
            self.on_room()

    def _on_began(self, link: Link, at_s: float) -> None:
        errand = link.running = link.queue.popleft()
        errand.state, errand.began_s, errand.payload = State.RUNNING, at_s, b""
        self.limits.start(errand)
        errand.accept(link.pid, clock.awake_s(at_s))
        if errand.terminated is not None and not link.held:
            self.strike(errand, errand.terminated)

    def _on_ended(self, link: Link, frame: wire.Frame) -> None:
        errand = link.running
        link.running, link.held = None, False
        self._room_grew = True
        if errand is None:  # it was concluded when its time was over
            return
        self.pace.saw(frame.at_s - errand.began_s)
        self._conclude(errand)
        succeeded, value, errand.outbox = _unpickled(frame.payload)
        if succeeded:
            errand.succeed(value)
        else:
            errand.fail(value)

    def _conclude(self, errand: Errand) -> None:
        self.limits.stop(errand)
        self._page.close(errand.entry, errand.lease)
        if errand.link is not None and errand.link.running is errand:
            errand.link.running = None
        errand.link, errand.entry, errand.state = None, NO_ENTRY, State.OVER

    def on_gone(self, link: Link, running: Errand | None, unbegun: list[Errand], exitcode: int) -> None:
        """Give a dead child's errands to others, but for the one it ran: that is lost, or was ended on purpose."""
        self.backlog.put_back(unbegun)
        for errand in unbegun:
            if errand.terminated is not None:
                self.cancel(errand)
        if not self.crew.growing:
            self.hand_over(self.backlog.clear())
        if running is not None:
            self._conclude(running)
            running.fail_with(
                Terminated(-exitcode)
                if link.held
                else WorkerLostError(f"Worker exited prematurely: {human_status(exitcode)} Errand: {running.ticket}.")
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
