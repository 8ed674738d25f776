"""How a worker ends: it drains and exits 0, or is told twice and stops at once with 2.

Draining, it claims nothing, gives back what has not begun, goes on renewing and lets what runs finish; only then does
Celery's own shutdown begin. So its loop is there until the last task has ended, and time limits, lost leases and remote
control work as ever.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from billiard.common import REMAP_SIGTERM
from celery import platforms, signals
from celery.apps.worker import Worker
from celery.concurrency.prefork import TaskPool as CelerysPrefork
from celery.platforms import EX_OK
from celery.worker import state as celerys_state

from atomic_celery import clock, errors, outbox, process_tree
from atomic_celery.endings import Attempt
from atomic_celery.loop import Loop
from atomic_celery.store import open_store
from atomic_celery.store.records import Held
from atomic_celery.worker.hoarding import give_back

if TYPE_CHECKING:
    from atomic_celery.worker.host import Host
    from atomic_celery.worker.requests import HeldRequest

logger = logging.getLogger(__name__)

state: Any = celerys_state  # its stub holds the flags for constants

EXIT_STOPPED = 2
LOOK_EVERY_S = 0.1
RELEASE_WITHIN_S = 5.0
SETTLE_AGAIN_AFTER_S = 0.5
LOOP_ANSWERS_WITHIN_S = 2.0
NEVER_S = float("inf")


class Shutdown:
    """The end of one worker.

    Attributes:
        draining: Whether it has begun.
        aborting: Whether it is to be over at once: then nobody cares for what children have to say.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.draining = self.aborting = False
        self._began = threading.Event()
        self._cut_off_at_s = NEVER_S
        self._idle_since_s = clock.monotonic_s()
        self._signals_fd = -1
        self._asked_celery = self._celery_stops = False

    def appetite(self) -> int:
        """Return how many more messages the pool could use. From any thread."""
        pool, autoscaler = self._host.pool, getattr(self._host.worker, "autoscaler", None)
        # Asked anew each time: remote control may change it.
        pool.ceiling = 0 if autoscaler is None else autoscaler.max_concurrency
        return 0 if self.draining else int(pool.appetite())

    def watch(self, timer: Any) -> None:
        """Be called by a loop that begins, or by its timer; only from here on a host that runs nothing is idle."""
        self._idle_since_s = clock.monotonic_s()
        timer.call_repeatedly(LOOK_EVERY_S, self._look)

    # Draining

    def drain(self, reason: str) -> None:
        """Let what runs finish, and then end the worker."""
        self.begin(reason)
        self._look()

    def follow(self) -> None:
        """Claim nothing from now on: Celery stops the worker, whoever asked for it."""
        self._celery_stops = True
        self.begin("stopping")

    def begin(self, reason: str) -> None:
        """Claim nothing from now on, and give back at once what has not begun."""
        if self.draining:
            return
        self.draining = True
        host = self._host
        self._bound()
        for bucket in filter(None, host.worker.consumer.task_buckets.values()):
            bucket.clear_pending()
        if host.is_contained:
            give_back(host.pool.recall_all())
        for request in host.roll.all():
            if request.phase == "waiting":
                request.give_back()
        host.chronicle.say("draining", reason=reason, running=len(state.active_requests))
        host.keeping.keeper.wake()
        self._began.set()

    def _bound(self, **_: Any) -> None:
        """Let what runs go on for so long from now. Safe in a signal handler."""
        timeout_s = self._host.settings.shutdown_timeout_s
        if timeout_s is not None and self._cut_off_at_s == NEVER_S:
            self._cut_off_at_s = clock.monotonic_s() + timeout_s

    def _look(self) -> None:
        """Go on to what is due."""
        now_s = clock.monotonic_s()
        if self._is_busy():
            self._idle_since_s = now_s
            if self._host.is_contained and now_s >= self._cut_off_at_s:
                self._cut_off()
        elif self.draining:
            self._let_celery_stop()
        elif self._idles_too_long(now_s):
            self.drain("idle")

    def _let_celery_stop(self) -> None:
        if not self._celery_stops:
            self._asked_celery = True
            state.should_stop = EX_OK

    def forget(self) -> None:
        """Take back what Celery was asked: its flag is the process's, and would end the next worker in it, too."""
        if self._asked_celery:
            state.should_stop = None

    def _is_busy(self) -> bool:
        host = self._host
        active = any(not request.is_settling for request in state.active_requests)
        return bool(len(host.roll) or active or (host.is_contained and host.pool.busy_count))

    def _idles_too_long(self, now_s: float) -> bool:
        limit_ms = self._host.settings.idle_exit_ms
        return limit_ms is not None and (now_s - self._idle_since_s) * 1000 >= limit_ms

    def _cut_off(self) -> None:
        """Stop what still runs, and release it once it is dead: fence, stop, release, in this order."""
        self._cut_off_at_s = NEVER_S
        for request in self._host.roll.all():
            request.stopping = True
            if request.held is not None:
                self._host.pool.deadlines.revoke(*request.held)
        for request in list(state.active_requests):
            self._stop(request)

    def stop_unnoticed(self) -> None:
        """Stop what children have begun without our having heard of it yet, and release that; the rest has begun.

        A cold shutdown cancels what runs, and then waits for the pool: what it does not know of would hold it up.
        """
        self.begin("stopping")
        for request in [*self._host.roll.all(), *state.reserved_requests]:
            if request.phase == "with the pool":
                request.stopping = True
                self._stop(request)

    def _stop(self, request: HeldRequest) -> None:
        logger.warning("Task %s[%s] is stopped: the worker shuts down", request.name, request.id)
        if self._host.is_contained and request.errand is not None:
            self._host.pool.kill(request.errand)

    def settle_and_leave(self) -> None:
        """Settle what has ended, give back all else, and leave the list of hosts. The pool must have ended."""
        host = self._host
        give_up_at_s = clock.monotonic_s() + host.settings.lease_s
        while host.tenure.claimer is not None and not self._settle() and clock.monotonic_s() < give_up_at_s:
            clock.pause(SETTLE_AGAIN_AFTER_S)
        try:
            with host.store.deadline(host.settings.statement_timeout_s):
                held = [(lease.message_id, lease.fence) for lease in host.keeping.keeper.held()]
                if held:
                    host.store.messages.release(held)
                host.presence.leave()
        except errors.StoreError as error:
            logger.warning("The host could not leave the list: %s", error)
        if self.draining and not self.aborting:
            host.chronicle.say("drained")

    def _settle(self) -> bool:
        with self._host.store.deadline(self._host.settings.statement_timeout_s):
            return self._host.claimer.flush()

    # Signals

    def take_signals(self) -> None:
        """Answer SIGTERM and SIGINT from now on, if this worker is a program of its own."""
        host = self._host
        is_program = isinstance(host.worker, Worker) and threading.current_thread() is threading.main_thread()
        if not is_program:
            return
        if not host.is_contained:
            self._end_in_time()
            return
        read_fd, self._signals_fd = os.pipe()
        threading.Thread(target=self._obey, args=(read_fd,), name="atomic-signals", daemon=True).start()
        for name in ("SIGINT",) if REMAP_SIGTERM == "SIGQUIT" else ("SIGINT", "SIGTERM"):
            platforms.signals[name] = self._on_signal

    def _on_signal(self, signum: int, _frame: Any) -> None:
        # Nothing but this is safe here: whatever it interrupted may hold any lock.
        os.write(self._signals_fd, bytes([signum]))

    def _obey(self, read_fd: int) -> None:
        """Act on signals one after the other, on a thread that nothing else can hold up."""
        first = os.read(read_fd, 1)[0]
        self._host.call_soon(self._drain_on_signal, signal.Signals(first).name)
        if not self._began.wait(LOOP_ANSWERS_WITHIN_S):
            self._let_celery_stop()  # the loop is not running; whatever does instead looks at the flag
        os.read(read_fd, 1)
        self._stop_at_once()

    def _drain_on_signal(self, name: str) -> None:
        signals.worker_shutting_down.send(sender=self._host.worker.hostname, sig=name, how="Warm", exitcode=EX_OK)
        self.drain(name)

    def _end_in_time(self) -> None:
        """Keep to the time that a drain may take where the pool is Celery's, and waits for its tasks for ever."""
        if self._host.settings.shutdown_timeout_s is None:
            return
        signals.worker_shutting_down.connect(self._bound, weak=False)  # a task of solo's lets nothing else begin

        def look() -> None:
            if clock.monotonic_s() >= self._cut_off_at_s:
                self._stop_celerys_pool()

        Loop("atomic-shutdown", look, interval_s=LOOK_EVERY_S).start()

    def _stop_celerys_pool(self) -> None:
        """End the processes of the pool and then this one; what runs in this one is left to its leases."""
        process_tree.kill_descendants()
        inside = [] if isinstance(self._host.pool, CelerysPrefork) else self._host.roll.all()
        self._exit(EX_OK, left={request.held for request in inside if request.held and request.phase != "waiting"})

    def _stop_at_once(self) -> None:
        """Kill the children, release all that is held and exit, whatever state the rest is in."""
        self.aborting = True
        self._host.pool.kill_all()
        self._exit(EXIT_STOPPED)

    def _exit(self, code: int, left: AbstractSet[Held] = frozenset()) -> None:
        """Release all that is held, but for what is *left* to run out, and exit."""
        self.aborting = True
        bound = threading.Timer(2 * RELEASE_WITHIN_S, os._exit, (code,))
        bound.daemon = True
        bound.start()
        released = self._release_all(left)
        self._host.chronicle.say("stopped", released=released)
        if self._host.worker.pidlock:
            self._host.worker.pidlock.release()
        logging.shutdown()
        os._exit(code)

    def _release_all(self, left: AbstractSet[Held]) -> int:
        """Settle what has ended and release the rest, by a connection of its own; return how many that were."""
        host = self._host
        attempt = Attempt([], []) if host.tenure.claimer is None else host.claimer.endings.begin()
        ended = attempt.settlement
        held = [(lease.message_id, lease.fence) for lease in host.keeping.keeper.held()]
        held = [each for each in held if each not in left]
        put_off = [ending.held for ending in attempt.put_off]  # who is next sends it back to where it waits
        settlement = replace(ended, released=[*ended.released, *put_off, *held])
        store = open_store(host.store.url.reveal(), host.store.settings)
        try:
            with store.deadline(RELEASE_WITHIN_S):
                with store.transaction("stop"):
                    turn = store.messages.turn(host.holder, settlement, (), 0, 0)
                    outbox.deliver(store, attempt.outbox(turn))
                    for buried in attempt.told(turn):
                        store.messages.tell(buried)
                host.presence.leave(store)
        except errors.StoreError as error:
            logger.warning("%d messages could not be released, their leases run out: %s", len(held), error)
            return 0
        return sum(message_id in turn.settled for message_id, _ in settlement.released)
