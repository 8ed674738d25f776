"""What one kombu connection consumes: from the claim, on whichever thread, to the callback on the consumer's own."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from atomic_celery import clock, errors
from atomic_celery.claimer import Claimer, Hooks
from atomic_celery.demand import Demand, Want
from atomic_celery.endings import Ending
from atomic_celery.lease import Lease, LeaseKeeper
from atomic_celery.store.queues import Queue
from atomic_celery.store.records import Claimed, Holder
from atomic_celery.transport import codec, letters
from atomic_celery.transport.codec import RawMessage
from atomic_celery.transport.declared import Declared
from atomic_celery.transport.pipe import Pipe
from atomic_celery.transport.qos import QoS

if TYPE_CHECKING:
    from atomic_celery.transport.broker import Broker, Tenure

logger = logging.getLogger(__name__)

CLOSE_WITHIN_S = 1.0
CHECK_QUEUES_EVERY_S = 30.0
MOST_AT_ONCE = 200
"""How many messages an event loop is given before it may look after something else."""


@dataclass(frozen=True, slots=True)
class Consumption:
    """One queue that is consumed, and for which channel."""

    queue: Queue
    qos: QoS
    no_ack: bool


class Intake:
    """The consumers of one connection, and the claimer that serves them.

    Without a loop everything happens in `drain`, on the caller's thread. With one (`attach`) the claimer has a thread
    of its own, and the loop's thread never talks to the database: deliveries come to it through a pipe.

    Args:
        callback: Given each message in kombu's form and the name of its queue, on the consumer's thread.
    """

    def __init__(self, broker: Broker, callback: Callable[[RawMessage, str], None]) -> None:
        self._broker, self._callback = broker, callback
        self.declared = Declared()
        self._consumed: dict[int, Consumption] = {}
        self._inbox: deque[tuple[RawMessage, Consumption]] = deque()
        self._tenure: Tenure | None = None
        self._claimer: Claimer | None = None
        self._keeper: LeaseKeeper | None = None
        self._loop: Any = None
        self._pipe: Pipe | None = None
        self._arrived = threading.Event()
        self._threaded = self._closed = False

    # What is consumed

    def consume(self, queue: Queue, qos: QoS, *, no_ack: bool) -> None:
        """Deliver from *queue* from now on."""
        self._consumed[queue.id] = Consumption(queue, qos, no_ack)
        if not no_ack and not self._threaded and self._broker.tenure is not None:
            self._take_office(self._broker.tenure)  # a worker's, in a green world without an event loop
        self._claims().look_again(thoroughly=True)
        self.has_room()

    def cancel(self, name: str) -> None:
        """Deliver from that queue no more."""
        for queue_id, consumption in list(self._consumed.items()):
            if consumption.queue.name == name:
                del self._consumed[queue_id]

    def get_now(self, queue: Queue, qos: QoS, *, no_ack: bool) -> RawMessage | None:
        """Claim the next message of *queue* at once; None when there is none."""
        consumption = Consumption(queue, qos, no_ack)
        raw: RawMessage | None = None
        while raw is None and (claimed := self._one_now(queue, no_ack=no_ack)):
            raw = self._accept(claimed[0], consumption)
        self.flush()  # of those that had expired
        return raw

    def _one_now(self, queue: Queue, *, no_ack: bool) -> list[Claimed]:
        if no_ack:
            return self._broker.store.messages.take([queue.id], 1)
        return self._claims().claim_now(Want((queue.id,), 1))

    # How claims end

    def settle(self, ending: Ending, *, at_once: bool = True) -> None:
        """End a claim: soon where the claimer has a thread, else now, or as soon as the database is back."""
        claimer = self._claims()
        claimer.settle(ending)
        if at_once and not self._threaded:
            claimer.flush()

    def flush(self) -> None:
        """Settle what was not settled at once."""
        if self._claimer is not None and not self._threaded:
            self._claimer.flush()

    def has_room(self) -> None:
        """Let the claimer ask again what there is room for."""
        if self._threaded and self._claimer is not None:
            self._claimer.wake()

    def is_started(self, message_id: int) -> bool:
        """Whether somebody works on that message, so that it is not to be given back with its channel."""
        return self._tenure is not None and self._tenure.started(message_id)

    def unwanted(self, delivery_tag: str, qos: QoS, reason: str) -> None:
        """End the claim of a message that its consumer rejected."""
        delivery = qos.forget(delivery_tag)
        if delivery is not None:
            self.settle(letters.dead_letter(self._broker.topology, delivery.held, delivery.queue, delivery.raw, reason))

    # The claimer's side: may be on its thread

    def demand(self) -> Demand:
        """Say what there is room for."""
        consumed = list(self._consumed.values())
        expiries_s = (each.queue.expires_ms / 3000 for each in consumed if each.queue.expires_ms is not None)
        return Demand(
            wants=tuple(self._wants(consumed)),
            no_ack_queue_ids=tuple(each.queue.id for each in consumed if each.no_ack),
            touch_every_s=max(1.0, min(expiries_s, default=CHECK_QUEUES_EVERY_S)),
        )

    def deliver(self, claimed: list[Claimed]) -> None:
        """Put what was claimed where the consumer's thread finds it."""
        for message in claimed:
            consumption = self._consumed.get(message.queue_id)
            if consumption is None or self._closed:
                self.settle(Ending(message.held, "release"), at_once=False)
                continue
            raw = self._accept(message, consumption)
            if raw is not None:
                self._inbox.append((raw, consumption))
        self._arrived.set()
        if self._pipe is not None:
            self._pipe.signal()

    def settled(self) -> None:
        """End a `drain`: somebody may wait for its caller to come round."""
        self._arrived.set()

    def redeclare(self, queue_ids: Collection[int]) -> None:
        """Make queues anew that went away although they are consumed."""
        for queue_id in queue_ids:
            gone = self._consumed.get(queue_id)
            queue = self.declared.again(self._broker.store, gone.queue.name) if gone is not None else None
            if gone is not None and queue is not None:
                logger.warning("the queue %r went away while it was consumed; it was declared again", queue.name)
                self._consumed[queue.id] = Consumption(queue, gone.qos, gone.no_ack)
                self._consumed.pop(queue_id, None)

    def _wants(self, consumed: list[Consumption]) -> Iterator[Want]:
        by_channel: dict[QoS, list[int]] = {}
        for each in consumed:
            if not each.no_ack:
                by_channel.setdefault(each.qos, []).append(each.queue.id)
        if self._tenure is not None and self._tenure.appetite is not None:
            every = tuple(queue_id for ids in by_channel.values() for queue_id in ids)
            if every:
                yield Want(every, max(0, self._tenure.appetite() - len(self._inbox)))
            return
        for qos, ids in by_channel.items():
            yield Want(tuple(ids), qos.room())

    def _accept(self, claimed: Claimed, consumption: Consumption) -> RawMessage | None:
        """Decode a message and count it; None if there is nothing to deliver."""
        try:
            raw = codec.unpack(claimed)
        except Exception:
            logger.exception("message %d of queue %r cannot be read", claimed.id, consumption.queue.name)
            if not consumption.no_ack:
                self.settle(Ending(claimed.held, "crash", reason="its payload cannot be read"), at_once=False)
            return None
        if claimed.expired and not codec.ends_revoked(raw):
            if not consumption.no_ack:
                ending = letters.dead_letter(
                    self._broker.topology, claimed.held, consumption.queue, raw, reason="expired"
                )
                self.settle(ending, at_once=False)
            return None
        if not consumption.no_ack:
            consumption.qos.reserve(claimed, consumption.queue, raw)
        return raw

    # The consumer's side

    def attach(self, loop: Any) -> None:
        """Serve *loop* from a thread; as a worker, if this process has one."""
        self._detach()
        self._pipe, self._loop, self._threaded = Pipe(), loop, True
        loop.add_reader(self._pipe.fileno(), self._on_arrival)
        if self._broker.tenure is not None:
            self._take_office(self._broker.tenure)
        else:
            self._claims().start()

    def _take_office(self, tenure: Tenure) -> None:
        """Consume for the worker from now on, with its claimer."""
        self._tenure, self._threaded = tenure, True
        self._claimer = tenure.claimer_for(self)
        self._claimer.start()
        self._claimer.look_again(thoroughly=True)
        self._claimer.wake()

    def drain(self, timeout_s: float | None) -> None:
        """Deliver what there is; wait for it if there is nothing.

        Raises:
            TimeoutError: Nothing came for *timeout_s*.
            StoreUnavailable: The database is away.
        """
        until_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
        if self._threaded:
            self._drain_arrivals(timeout_s)
            return
        claimer = self._claims()
        claimer.hear()
        claimer.look_again(thoroughly=True)
        while not self._deliver_some():
            wait_s = claimer.turn()
            if self._inbox or wait_s == 0:
                continue
            if until_s is not None:
                wait_s = min(wait_s, until_s - clock.monotonic_s())
                if wait_s <= 0:
                    raise TimeoutError
            claimer.sleep(wait_s)

    def _drain_arrivals(self, timeout_s: float | None) -> None:
        """Deliver what the claimer's thread has brought, or come back because it has settled something."""
        if self._deliver_some():
            return
        if not self._arrived.wait(timeout_s):
            raise TimeoutError
        self._arrived.clear()
        self._deliver_some()

    def close(self) -> None:
        """Consume no more; give back what has not been delivered."""
        if self._closed:
            return
        self._closed = True
        self._consumed.clear()
        self._detach()
        while self._inbox:
            raw, consumption = self._inbox.popleft()
            self._give_back(raw, consumption)
        if self._tenure is not None:
            self._tenure.leave(self)
        elif self._claimer is not None:
            self._claimer.stop(CLOSE_WITHIN_S)
        if self._keeper is not None:
            self._keeper.stop(CLOSE_WITHIN_S)
        with contextlib.suppress(errors.AtomicError), self._broker.store.deadline(CLOSE_WITHIN_S):
            for name in self.declared.exclusive:
                self._broker.store.queues.delete(name)

    def _claims(self) -> Claimer:
        """Return the claimer; a connection that is no worker's claims for itself."""
        if self._claimer is None:
            store, settings = self._broker.store, self._broker.settings
            holder = Holder(uuid4().hex, uuid4().hex)
            self._keeper = LeaseKeeper(store, holder, settings, on_lost=_lost)
            self._claimer = Claimer(
                store, holder, self._keeper, settings, sleeper=holder.id, consumer=self, hooks=Hooks(refused=_refused)
            )
            self._keeper.start()
        return self._claimer

    def _on_arrival(self) -> None:
        assert self._pipe is not None
        self._pipe.clear()
        try:
            for _ in range(MOST_AT_ONCE):
                if not self._inbox:
                    return
                self._deliver_next()
        finally:
            if self._inbox and self._pipe is not None:
                self._pipe.signal()

    def _deliver_some(self) -> bool:
        """Deliver what was claimed together; of messages that nobody acknowledges only one."""
        delivered = False
        while self._inbox:
            delivered = True
            no_ack = self._inbox[0][1].no_ack
            self._deliver_next()
            if no_ack:
                break
        return delivered

    def _deliver_next(self) -> None:
        raw, consumption = self._inbox.popleft()
        if self._consumed.get(consumption.queue.id) is consumption:
            self._callback(raw, consumption.queue.name)
        else:
            self._give_back(raw, consumption)

    def _give_back(self, raw: RawMessage, consumption: Consumption) -> None:
        if not consumption.no_ack:
            delivery = consumption.qos.forget(raw["properties"]["delivery_tag"])
            if delivery is not None:
                self.settle(Ending(delivery.held, "release"))

    def _detach(self) -> None:
        if self._pipe is not None:
            pipe, self._pipe = self._pipe, None
            self._loop.remove_reader(pipe.fileno())
            pipe.close()


def _lost(lease: Lease, reason: str) -> None:
    logger.warning("the lease of message %d (fence %d) is lost: %s", lease.message_id, lease.fence, reason)


def _refused(ending: Ending) -> None:
    logger.warning("message %d (fence %d) was no longer ours to %s", *ending.held, ending.outcome)
