"""Celery's face of the pool.

The module's name tells Celery's Django fixup and its test worker that tasks run in forked processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from billiard.common import TERM_SIGNAL
from celery.concurrency.base import BasePool
from celery.exceptions import ImproperlyConfigured
from kombu.asynchronous import get_event_loop

from atomic_celery.concurrency.crew import Rules
from atomic_celery.concurrency.deadline_page import DeadlinePage
from atomic_celery.concurrency.errand import Errand, pack
from atomic_celery.concurrency.ledger import Ledger
from atomic_celery.concurrency.link import Link
from atomic_celery.concurrency.pace import MOST_IN_HOST
from atomic_celery.concurrency.watch import Watch

ErrandsCallback = Callable[[list[Errand]], None]


class TaskPool(BasePool):
    """Forked processes that are handed several tasks at once, and can be asked for them back.

    All methods are for the loop's thread, except where they say otherwise.

    Attributes:
        deadlines: Until when each lease is trusted; whoever renews leases tells it.
        journal: Where the claims of its errands are, if whoever gets an errand's end commits its `outbox` with it.
        ceiling: How many children there may be once somebody (Celery's autoscaler) makes the pool grow. It does
            so only when there is more work than children, so the missing ones count as free slots.
        looks_ahead: Whether `appetite` may ask for more than fills the free slots.
    """

    uses_semaphore = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.looks_ahead = self.app is None or self.app.conf.worker_prefetch_multiplier != 1
        self.journal: str | None = None
        self.ceiling = 0
        self.deadlines = DeadlinePage()
        self._watch = Watch()
        fair = self.options.get("sched_strategy") != "fast"
        self._ledger = Ledger(self.limit, self._rules(), self.deadlines, self._watch, fair=fair)
        self._crew = self._ledger.crew
        self._tickets = itertools.count(1)

    def _rules(self) -> Rules:
        app, hostname = self.options.get("initargs") or (self.app, "")
        return Rules(
            app=app,
            hostname=hostname,
            max_tasks=self.options.get("maxtasksperchild"),
            max_memory_kb=self.options.get("max_memory_per_child"),
        )

    @property
    def on_unstarted(self) -> ErrandsCallback:
        """Called with errands that left the pool without having begun, callbacks not called.

        That is so when it is closed, at a lost connection, and when a lease was over before its errand began.
        """
        return self._ledger.on_unstarted

    @on_unstarted.setter
    def on_unstarted(self, callback: ErrandsCallback) -> None:
        self._ledger.on_unstarted = callback

    @property
    def on_room(self) -> Callable[[], None]:
        """Called when there may be room for more errands than before."""
        return self._ledger.on_room

    @on_room.setter
    def on_room(self, callback: Callable[[], None]) -> None:
        self._ledger.on_room = callback

    # -- Celery's life of a pool

    def on_start(self) -> None:
        """Fork the children."""
        hub = get_event_loop()
        if self.options.get("threads") or hub is None:
            raise ImproperlyConfigured(
                "the pool 'atomic' needs Celery's event loop, which the transport of this broker_url does not "
                "support; choose -P prefork, or an atomic+… broker_url"
            )
        self._watch.attach(hub)
        self._crew.fill()

    def did_start_ok(self) -> bool:
        """Whether no child has ended before it was ready."""
        self._crew.look()
        return not self._crew.stillborn

    def register_with_event_loop(self, loop: Any) -> None:
        """Let *loop* serve the pool from now on; Celery says so again after each lost connection."""
        self._watch.attach(loop)
        loop.on_tick.add(self._ledger.tick)

    def on_close(self) -> None:
        """Begin nothing more: hand out what has not begun, let the rest run."""
        self._crew.growing = False
        self._ledger.hand_over(self.recall_all())

    def on_stop(self) -> None:
        """Wait, without bound, for the tasks that run; then let the children leave."""
        self.on_close()
        while self.busy_count:
            self._watch.wait(0.5)
        self._crew.disband()
        self._watch.close()

    def on_terminate(self) -> None:
        """End all children at once. What they ran is lost, and tells nobody."""
        self.on_close()
        self._ledger.abandon()
        self._crew.kill()
        self._watch.close()

    def flush(self) -> None:
        """Hand out what has not begun: the connection its messages came by is lost."""
        self._ledger.hand_over(self.recall_all())

    def restart(self) -> None:
        """Replace every child, each after the task it runs."""
        for link in list(self._crew.links):
            self._ledger.recall(link)
            self._crew.dismiss(link)

    def maintain_pool(self, *_args: Any, **_kwargs: Any) -> None:
        """Fork children that are missing."""
        self._crew.fill()

    def grow(self, n: int = 1) -> None:
        """Add *n* children.

        Raises:
            ValueError: *n* is no whole number above 0.
        """
        self._resize(_count(n))
        self._crew.fill()

    def shrink(self, n: int = 1) -> None:
        """Remove *n* idle children.

        Raises:
            ValueError: There are fewer; those there are were removed. Or *n* is no whole number above 0.
        """
        n = _count(n)
        idle = [link for link in self._crew.links if not link.load and not link.leaving]
        for link in idle[:n]:
            self._resize(-1)
            self._crew.dismiss(link)
        if len(idle) < n:
            raise ValueError("Can't shrink pool. All processes busy!")

    def _resize(self, by: int) -> None:
        self._crew.size += by
        self.limit = self._crew.size

    # -- errands in

    def on_apply(  # type: ignore[override]  # the stub knows nothing of what Celery passes
        self,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        soft_timeout: float | None = None,
        timeout: float | None = None,
        callbacks_propagate: tuple[type[BaseException], ...] = (),
        accept_callback: Callable[..., Any] | None = None,
        callback: Callable[..., Any] | None = None,
        error_callback: Callable[..., Any] | None = None,
        timeout_callback: Callable[..., Any] | None = None,
        correlation_id: str | None = None,
        **_options: Any,
    ) -> Errand | None:
        """Let a child call *target*; the callbacks tell what came of it."""
        payload, lease = pack(target, args, kwargs or {}, journal=self.journal)
        errand = Errand(
            next(self._tickets),
            payload,
            lease,
            self._ledger.cancel,
            accept_callback=accept_callback,
            callback=callback,
            error_callback=error_callback,
            timeout_callback=timeout_callback,
            soft_timeout_s=soft_timeout or self.options.get("soft_timeout"),
            timeout_s=timeout or self.options.get("timeout"),
            correlation_id=correlation_id,
            propagate=callbacks_propagate,
        )
        if not self._crew.growing:
            self._ledger.hand_over([errand])
            return None
        self._ledger.add(errand)
        return errand

    # -- errands out

    def take_back(self, errand: Errand) -> bool:
        """Take *errand* out of the pool, callbacks not called; False when it has begun."""
        return self._ledger.take_back(errand)

    def recall_all(self) -> list[Errand]:
        """Take every errand that has not begun out of the pool; oldest first, callbacks not called."""
        return self._ledger.recall_all()

    def kill(self, errand: Errand) -> None:
        """End *errand*, wherever it is, with every process it started; it fails as `Terminated`."""
        self._ledger.kill(errand)

    def kill_all(self) -> None:
        """End all children at once, with everything they started, and start no more; return when they are dead.

        Safe from any thread, and unlike `terminate` it does nothing else: the loop may be stuck.
        """
        self._crew.kill_all()

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """Signal the process *pid*, if it still runs what it is known to run; that errand fails as `Terminated`."""
        link = self._crew.by_pid(pid)
        if link is not None and link.running is not None:
            self._ledger.strike(link.running, signal or TERM_SIGNAL)

    def on_soft_timeout(self, errand: Errand) -> None:
        """Interrupt *errand*: its soft time limit is over."""
        self._ledger.limits.soft(errand)

    def on_hard_timeout(self, errand: Errand) -> None:
        """End *errand*: its hard time limit is over."""
        self._ledger.limits.hard(errand)

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Call *callback* on the pool's thread. Safe from any thread, also while the pool is stopping."""
        self._watch.call_soon(callback, *args)

    # -- what it has room for

    @property
    def busy_count(self) -> int:
        """How many children have something to do. Safe from any thread."""
        return sum(1 for link in self._crew.links if link.load)

    def free_slots(self) -> int:
        """Return how many children are ready and have nothing to do. Safe from any thread."""
        return sum(1 for link in self._crew.links if link.open and not link.load)

    def backlog(self) -> int:
        """Return how many errands have not begun. Safe from any thread."""
        return len(self._ledger.backlog) + sum(len(link.queue) for link in self._crew.links)

    def appetite(self) -> int:
        """Return how many more errands it is worth to have now. Safe from any thread: no promise, but a good guess."""
        return min(MOST_IN_HOST, max(0, self._wanted() - self.backlog()))

    def stalled_s(self) -> float:
        """Return for how long nothing has begun because no child is free; 0.0 while one is."""
        return 0.0 if self.free_slots() else self._ledger.running_s()

    def take_surplus(self) -> list[Errand]:
        """Take out the newest errands that this host will not begin soon, because tasks take longer than they did."""
        starting = sum(1 for link in self._crew.links if not (link.up or link.leaving))
        surplus = self.backlog() - self._wanted() - starting
        return self._ledger.take_newest(surplus) if surplus > 0 else []

    def _wanted(self) -> int:
        """How many errands that have not begun the pool should hold."""
        slots = self.free_slots() + max(0, self.ceiling - self._crew.size)
        if not self.looks_ahead:
            return slots
        return slots + self._ledger.pace.lookahead(len(self._crew.links), self._ledger.running_s())

    @property
    def num_processes(self) -> int:
        """How many children there should be."""
        return self._crew.size

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()  # type: ignore[misc]  # its stub lacks it
        links = sorted(self._crew.links, key=lambda link: link.slot)
        info.update(
            {
                "max-concurrency": self._crew.size,
                "processes": [link.pid for link in links],
                "max-tasks-per-child": self.options.get("maxtasksperchild") or "N/A",
                "timeouts": (self.options.get("soft_timeout") or 0, self.options.get("timeout") or 0),
                "slots": [_describe(link) for link in links],
                "backlog": self.backlog(),
                "task-seconds": self._ledger.pace.task_s,
            }
        )
        return info


def _count(n: Any) -> int:
    """Return by how many processes a pool is to grow or shrink; remote control may ask for anything."""
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"a pool grows and shrinks by a whole number of processes, at least 1; got {n!r}")
    return n


def _describe(link: Link) -> dict[str, Any]:
    return {
        "slot": link.slot,
        "pid": link.pid,
        "up": link.up,
        "leaving": link.leaving,
        "running": link.running.correlation_id if link.running is not None else None,
        "waiting": len(link.queue),
    }
