"""kombu's channel: queues, exchanges, bindings, publishing and consuming, each said to the store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments  # type: ignore[attr-defined]
from kombu.utils.uuid import uuid

from atomic_celery import errors, limits, mailbag, names
from atomic_celery.store.queues import Binding, QueueSpec
from atomic_celery.store.records import NewMessage
from atomic_celery.transport import codec, continuing, remote
from atomic_celery.transport.bulk import Bulk
from atomic_celery.transport.codec import Packed, RawMessage
from atomic_celery.transport.qos import QoS as Holding
from atomic_celery.transport.topology import Topology, pattern_of

if TYPE_CHECKING:
    from atomic_celery.store import Store
    from atomic_celery.transport.transport import Transport

logger = logging.getLogger(__name__)

DEFAULT_EXCHANGE = "amq.direct"
_NOT_FOUND, _PRECONDITION_FAILED = 404, 406


class Channel(virtual.Channel):
    """One kombu channel. Publishing is safe from any thread that has the channel to itself."""

    QoS = Holding
    do_restore = False
    supports_fanout = True
    body_encoding = None  # type: ignore[assignment]  # text stays text
    from_transport_options = ()

    connection: Transport
    qos: Holding

    def __init__(self, connection: Transport, **options: Any) -> None:
        super().__init__(connection, **options)
        self._broker = connection.broker
        self._store: Store = self._broker.store
        self._topology: Topology = self._broker.topology
        self._unsettled = False

    # Publishing

    def prepare_message(
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> RawMessage:
        """Put a message together; a second attempt to publish it is recognised as the same message."""
        self._settle()
        headers = {} if headers is None else headers
        # kombu hands over the same properties with each attempt; an id given once stays.
        properties = {} if properties is None else properties
        properties.setdefault("priority", priority or codec.LOWEST_PRIORITY)
        codec.name_publication(headers, properties)
        return {
            "body": body,
            "content-encoding": content_encoding,
            "content-type": content_type,
            "headers": headers,
            "properties": properties,
        }

    def basic_publish(
        self, message: RawMessage, exchange: str = "", routing_key: str = "", timeout: float | None = None, **_: Any
    ) -> None:
        """Store a message in every queue it is routed to, in one round trip."""
        exchange, routing_key = exchange or "", routing_key or ""
        packed = codec.pack(message, exchange, routing_key)
        tenure = self._broker.tenure
        if tenure is not None and tenure.carries(exchange, lambda: self._address(packed, exchange, routing_key)):
            return
        with self._store.deadline(timeout) if timeout else nullcontext():
            remote.remember_revokes(self._store, exchange, message)
            self._publish(packed, exchange, routing_key)

    def create_publish_batch(self, max_size: int) -> Bulk:
        """Return what `kombu.Producer.batch` collects messages in."""
        return Bulk(self, max_size)

    def route(self, packed: Packed, exchange: str, routing_key: str) -> list[NewMessage]:
        """Return a message as it is to be stored, once for each queue it goes to."""
        new = limits.apply(self._address(packed, exchange, routing_key))
        if not new and not exchange:
            logger.warning("a message for the queue %r was dropped: there is no such queue", routing_key)
        return new

    def _address(self, packed: Packed, exchange: str, routing_key: str) -> list[NewMessage]:
        return self._topology.addressed(packed, exchange, routing_key)

    def _publish(self, packed: Packed, exchange: str, routing_key: str) -> None:
        try:
            self.store_messages(self.route(packed, exchange, routing_key))
        except errors.QueueNotFound:
            self._topology.changed()
            self.store_messages(self.route(packed, exchange, routing_key))

    def store_messages(self, new: Sequence[NewMessage]) -> None:
        """Publish, but for what goes along with the end of the running task."""
        if at_once := continuing.set_aside(self._store, new):
            mailbag.put(self._store, at_once)

    def _settle(self) -> None:
        """Declare and look up anew what a transaction of the application's may still undo, or has undone."""
        settling = self._store.settling()
        if settling or self._unsettled:
            self._unsettled = settling
            self._topology.changed()
            declared = self.connection.client.declared_entities
            if declared is not None:
                declared.clear()

    # Consuming

    def basic_consume(  # type: ignore[override]  # the stubs promise a tag, kombu returns none
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **options: Any
    ) -> None:
        """Deliver messages of *queue* to *callback* from now on."""
        found = self._topology.queue(queue) or self._not_found("queue", queue, "basic_consume")
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        self.connection.intake.consume(found, self.qos, no_ack=no_ack)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Deliver no more to this consumer; a queue that deletes itself goes with its last one."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and self.connection is not None and queue not in self._active_queues:
            self.connection.intake.cancel(queue)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """Return the next message of *queue*; None when there is none."""
        found = self._topology.queue(queue) or self._not_found("queue", queue, "basic_get")
        raw = self.connection.intake.get_now(found, self.qos, no_ack=no_ack)
        return None if raw is None else self.Message(raw, channel=self)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Complete a message."""
        self.qos.ack(delivery_tag, multiple=multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Make a message ready again, or dead-letter it."""
        self.qos.reject(delivery_tag, requeue=requeue)

    def basic_recover(self, requeue: bool = False) -> Any:
        """Make everything this channel holds ready again; AMQP's other kind of recovery is unknown here."""
        if not requeue:
            raise NotImplementedError("only basic_recover(requeue=True) is supported")
        return self.qos.restore_unacked()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Say how many messages this channel's consumers may hold; 0 means any number."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.connection.intake.has_room()

    # Queues

    def queue_declare(self, queue: str | None = None, passive: bool = False, **options: Any) -> queue_declare_ok_t:
        """Make sure that a queue exists and return its name and size; with *passive* only if it does."""
        name = queue or f"amq.gen-{uuid()}"
        names.require("queue", name)
        if passive:
            if self._store.queues.get(name) is None:
                self._not_found("queue", name, "queue_declare")
        else:
            self._new_queue(name, **options)
        return queue_declare_ok_t(name, self._size(name), 0)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> int:
        """Delete a queue and its messages; return how many there were.

        Raises:
            ChannelError: It is not empty, or not unused, as it had to be.
        """
        try:
            return self._store.queues.delete(queue, if_unused=if_unused, if_empty=if_empty)
        except (errors.QueueInUse, errors.QueueNotEmpty) as error:
            raise _refusal(str(error), _PRECONDITION_FAILED, "queue_delete") from error
        finally:
            self._topology.changed()
            self.connection.intake.declared.deleted(queue)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,  # noqa: ARG002
        **_: Any,
    ) -> None:
        """Route messages of *exchange* to *queue*."""
        binding = self._binding(queue, exchange, routing_key)
        try:
            self._store.queues.bind(binding.exchange, binding.routing_key, binding.pattern, binding.queue)
        except errors.QueueNotFound as error:
            raise _refusal(str(error), _NOT_FOUND, "queue_bind") from error
        self._topology.changed()
        self.connection.intake.declared.binding(binding)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,  # noqa: ARG002
        **_: Any,
    ) -> None:
        """Route messages of *exchange* there no more."""
        binding = self._binding(queue, exchange, routing_key)
        self._store.queues.unbind(binding.exchange, binding.routing_key, binding.pattern, binding.queue)
        self._topology.changed()
        self.connection.intake.declared.unbound(binding)

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        """Say expiry, TTL and priority in RabbitMQ's words, the only ones kombu has for them."""
        return to_rabbitmq_queue_arguments(arguments or {}, **options)

    def _new_queue(self, queue: str, **options: Any) -> None:
        spec = spec_of(queue, **options)
        self._store.queues.declare(spec)
        self._topology.changed()
        self.connection.intake.declared.queue(spec, exclusive=bool(options.get("exclusive")))

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return self._store.queues.get(queue) is not None

    def _size(self, queue: str) -> int:
        return self._store.queues.size(queue)

    def _purge(self, queue: str) -> int:
        try:
            return self._store.queues.purge(queue)
        except errors.QueueNotFound as error:
            raise _refusal(str(error), _NOT_FOUND, "queue_purge") from error

    # Exchanges

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",  # noqa: A002
        durable: bool = False,  # noqa: ARG002
        auto_delete: bool = False,  # noqa: ARG002
        arguments: Any = None,  # noqa: ARG002
        nowait: bool = False,  # noqa: ARG002
        passive: bool = False,
    ) -> None:
        """Make sure that an exchange exists; with *passive* only check it."""
        kind = type or "direct"
        name = exchange or f"amq.{kind}"
        names.require("exchange", name)
        if passive:
            if self._topology.exchange_type(name) is None:
                self._not_found("exchange", name, "exchange_declare")
            return
        if kind not in self.exchange_types:
            raise _refusal(f"exchanges of type {kind!r} are not supported", _PRECONDITION_FAILED, "exchange_declare")
        self._topology.declare_exchange(name, kind)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:  # noqa: ARG002
        """Remove an exchange and its bindings; queues stay."""
        if if_unused and self._store.queues.bindings(exchange):
            raise _refusal(f"exchange {exchange!r} has bindings", _PRECONDITION_FAILED, "exchange_delete")
        self._topology.delete_exchange(exchange)

    def get_table(self, exchange: str) -> list[tuple[str, str, str]]:
        """Return an exchange's bindings as kombu writes them."""
        return [(each.routing_key, each.pattern, each.queue) for each in self._store.queues.bindings(exchange)]

    def list_bindings(self) -> Generator[tuple[str, str, str], None, None]:
        """Yield every binding: queue, exchange, routing key."""
        for each in self._store.queues.bindings():
            yield each.queue, each.exchange, each.routing_key

    def _binding(self, queue: str, exchange: str | None, routing_key: str) -> Binding:
        name = exchange or DEFAULT_EXCHANGE
        names.require("exchange", name)
        names.require("routing key", routing_key)
        kind = self._topology.exchange_type(name) or "direct"
        return Binding(name, routing_key or "", pattern_of(kind, routing_key or ""), queue)

    def _not_found(self, what: str, name: str, method: str) -> Any:
        raise _refusal(f"NOT_FOUND - no {what} {name!r}", _NOT_FOUND, method)


def spec_of(
    name: str,
    *,
    auto_delete: bool = False,
    exclusive: bool = False,
    arguments: Any = None,
    **_: Any,
) -> QueueSpec:
    """Return what a queue is declared like.

    An exclusive one is not tied to one holder: a process that was killed must not lock itself out of its own mailbox.
    It goes with its connection, or is abandoned with it.
    """
    said = dict(arguments or {})
    return QueueSpec(
        name=name,
        auto_delete=bool(auto_delete or exclusive),
        expires_ms=_whole(said.get("x-expires")),
        message_ttl_ms=_whole(said.get("x-message-ttl")),
        max_priority=_whole(said.get("x-max-priority")),
        dead_letter_exchange=said.get("x-dead-letter-exchange"),
        dead_letter_routing_key=said.get("x-dead-letter-routing-key"),
        arguments=said,
    )


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _refusal(message: str, code: int, method: str) -> ChannelError:
    return ChannelError(message, (50, 10), f"Channel.{method}", code)
