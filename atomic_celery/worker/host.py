"""One worker's standing in the fleet: who it is, what it holds, what becomes of that, and what it says of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.backends.base import DisabledBackend
from celery.worker import state

from atomic_celery import clock
from atomic_celery.concurrency.prefork import TaskPool
from atomic_celery.presence import Load, Presence
from atomic_celery.store.records import Holder
from atomic_celery.transport.broker import Broker, Tenure
from atomic_celery.worker import limiting, replacing
from atomic_celery.worker.cancelling import Cancelling
from atomic_celery.worker.chronicle import Chronicle
from atomic_celery.worker.hoarding import Hoarding, give_back
from atomic_celery.worker.keeping import Keeping
from atomic_celery.worker.metering import Metering
from atomic_celery.worker.roll import Roll
from atomic_celery.worker.settling import Settling
from atomic_celery.worker.shutdown import Shutdown

if TYPE_CHECKING:
    from atomic_celery.claimer import Claimer
    from atomic_celery.config import Settings
    from atomic_celery.identity import Identity
    from atomic_celery.lines import Lines


logger = logging.getLogger(__name__)

FLUSH_EVERY_S = 0.1

StartStopStep: Any = bootsteps.StartStopStep  # its stub is too strict about what a step may tell


class Host:
    """What a worker is beside Celery's part of it. All is for the loop's thread, unless it says otherwise."""

    def __init__(self, worker: Any, broker: Broker, settings: Settings, identity: Identity, lines: Lines) -> None:
        self.worker, self.broker, self.settings, self.identity = worker, broker, settings, identity
        self.store = broker.store
        self.holder = Holder(identity.id, identity.boot, is_host=True)
        self.load = Load(slots=worker.concurrency)
        self.metrics = None if settings.metrics_listen is None else Metering(self, settings.metrics_listen)
        self._has_said_ready = False
        self._busy_at_s = clock.monotonic_s()
        self.chronicle = Chronicle(lines, self.load)
        self.roll = Roll()
        self.keeping = Keeping(self)
        self.settling = Settling(self)
        self.shutdown = Shutdown(self)
        self.hoarding = Hoarding(self)
        self.presence = Presence(self.store, identity, settings, worker.hostname, self._measure)
        self.presence.on_draining = lambda: self.call_soon(self.shutdown.drain, "asked")
        self.cancelling = Cancelling(self)
        self.keeping.keeper.beside = self._report
        self.tenure = broker.tenure = Tenure(
            self.holder, self.keeping.keeper, hooks=self.settling.hooks, started=self.roll.__contains__
        )

    @property
    def pool(self) -> Any:
        """The worker's pool."""
        return self.worker.pool

    @property
    def is_contained(self) -> bool:
        """Whether the pool is ours: it can stop a task with all it started, and give back what has not begun."""
        return isinstance(self.worker.pool, TaskPool)

    @property
    def claimer(self) -> Claimer:
        """What claims and settles for this worker, from its first connection on."""
        assert self.tenure.claimer is not None
        return self.tenure.claimer

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Have *callback* called on the loop's thread. Safe from any thread."""
        if self.is_contained:
            self.pool.call_soon(callback, *args)
        else:
            self.worker.consumer.call_soon(callback, *args)

    def open(self) -> None:
        """Enter the list of hosts and start renewing: from now on messages may be claimed."""
        stamps: dict[str, Any] = state.revoked_stamps
        for header, value in self.store.revocations.stamps():
            stamps.setdefault(header, []).append(value)
        limiting.declare(self.worker.app, self.store)
        self.settling.hooks.crashed(self.presence.register())
        if self.is_contained:
            self.keeping.attach(self.pool.deadlines)
            self.pool.on_unstarted = give_back
            self.pool.journal = self.store.journal
            self.pool.on_room = lambda: self.claimer.wake()
            self.tenure.appetite = self.shutdown.appetite
        self.keeping.keeper.start()
        if self.metrics is not None:
            self.metrics.start()
        self._say_where_results_are()

    def _say_where_results_are(self) -> None:
        """Warn once if a result is stored before its task is settled, and not together with that."""
        backend = self.worker.app.backend
        if not isinstance(backend, DisabledBackend) and not getattr(backend, "is_at_home", False):
            logger.warning(
                "Results are kept in %s, which is not where the messages are: each is stored before its task is "
                "settled, and not together with that",
                backend.as_uri(),
            )

    def say_ready(self) -> None:
        """Say that messages are claimed from now on, the first time that a connection lasts until then."""
        if self._has_said_ready:
            return
        self._has_said_ready = True
        self.chronicle.say(
            "ready",
            host=self.holder.id,
            slots=self.load.slots,
            journal=str(self.store.url),
            instance=self.presence.provider_id,
            metrics=None if self.metrics is None else self.metrics.address,
        )

    def begin_without_loop(self, timer: Any) -> None:
        """Let *timer* do what a loop would do from now on: Celery has none in a green world."""
        if not self._has_said_ready:
            timer.call_repeatedly(FLUSH_EVERY_S, self.chronicle.flush)
            self.shutdown.watch(timer)
            self.say_ready()

    def close(self) -> None:
        """Settle what waits, give back the rest and leave the list, if the database can be reached."""
        self.shutdown.settle_and_leave()
        self.shutdown.forget()
        if self.tenure.claimer is not None:
            self.tenure.claimer.stop(timeout_s=1.0)
        self.keeping.keeper.stop(timeout_s=1.0)
        self.broker.tenure = None
        self.identity.release()
        if self.metrics is not None:
            self.metrics.close()

    def _report(self) -> float:
        """Say that this host lives, and hear what of its work is cancelled. On the keeper's thread."""
        wait_s = self.presence.report()
        self.cancelling.look()
        return wait_s

    def _measure(self) -> Load:
        """Look at what there is to report. On the keeper's thread: it only reads."""
        load, consumer = self.load, getattr(self.worker, "consumer", None)
        load.busy = len(state.active_requests)
        load.slots = getattr(self.pool, "num_processes", None) or self.worker.concurrency
        task_consumer = getattr(consumer, "task_consumer", None)
        load.queues = tuple(queue.name for queue in task_consumer.queues) if task_consumer else load.queues
        load.draining = self.shutdown.draining
        load.idle_ms = self._idle_ms(load)
        return load

    def _idle_ms(self, load: Load) -> int | None:
        now_s = clock.monotonic_s()
        if load.busy or len(self.roll) or (self.is_contained and self.pool.busy_count):
            self._busy_at_s = now_s
            return None
        return round((now_s - max(self._busy_at_s, self.roll.emptied_s)) * 1000)


class HostStep(StartStopStep):  # type: ignore[misc]
    """Registers the host once there is a pool, and takes its signals."""

    label = "Atomic host"
    requires = ("celery.worker.components:Pool",)

    def create(self, worker: Any) -> None:
        """Prepare the tasks before the pool starts its processes."""
        replacing.take_over(worker.app, worker.atomic.store)

    def start(self, worker: Any) -> None:
        """Enter the fleet."""
        worker.atomic.open()
        worker.atomic.shutdown.take_signals()

    def close(self, worker: Any) -> None:
        """Claim no more, whatever the reason for the shutdown is."""
        worker.atomic.shutdown.follow()

    def stop(self, worker: Any) -> None:
        """Do nothing: leases are renewed until the last task has ended, see `LeaveStep`."""

    def terminate(self, worker: Any) -> None:
        """Do nothing, for the same reason."""


class LeaveStep(StartStopStep):  # type: ignore[misc]
    """Goes with the consumer, whose `shutdown` comes after the pool's end and before the connection's."""

    label = "Atomic leave"
    requires = ("celery.worker.consumer.connection:Connection",)

    def start(self, consumer: Any) -> None:
        """Begin, where no loop will: see `register_with_event_loop`."""
        if not consumer.controller.use_eventloop:
            consumer.controller.atomic.begin_without_loop(consumer.timer)

    def stop(self, consumer: Any) -> None:
        """Do nothing: the consumer may be about to start again."""

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Take part in the loop of this connection."""
        host: Host = consumer.controller.atomic
        hub.on_tick.add(host.chronicle.flush)
        if host.is_contained:
            host.hoarding.watch(hub)
        host.shutdown.watch(hub)
        hub.call_soon(host.say_ready)

    def shutdown(self, consumer: Any) -> None:
        """Leave the fleet."""
        consumer.controller.atomic.close()

    def info(self, consumer: Any) -> dict[str, Any]:
        """Return what `inspect stats` shows: no secrets, and who this is."""
        host: Host = consumer.controller.atomic
        return {"broker": {"hostname": str(host.store.url)}, "atomic": {"host": host.holder.id, "held": len(host.roll)}}
