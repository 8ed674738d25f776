"""Where messages go that were rejected or expired: nowhere, unless their queue names an exchange for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atomic_celery.endings import Ending
from atomic_celery.store.queues import Queue
from atomic_celery.store.records import Held, NewMessage
from atomic_celery.transport import codec
from atomic_celery.transport.codec import RawMessage
from atomic_celery.transport.topology import Topology


def dead_letter(topology: Topology, held: Held, queue: Queue, raw: RawMessage, reason: str) -> Ending:
    """Return the end of a message that its consumer does not want.

    If its queue has a dead letter exchange, the message is published there in the transaction that ends it here.
    """
    exchange = queue.dead_letter_exchange
    if exchange is None:
        return Ending(held, "complete")
    return Ending(held, "complete", outbox=lambda: _letters(topology, exchange, queue, raw, reason))


def _letters(topology: Topology, exchange: str, queue: Queue, raw: RawMessage, reason: str) -> Sequence[NewMessage]:
    came_by = raw["properties"]["delivery_info"]
    routing_key = queue.dead_letter_routing_key or came_by.get("routing_key") or ""
    letter = codec.without_claim(raw)
    _note_death(letter["headers"], queue.name, reason, came_by)
    return topology.addressed(codec.pack(letter, exchange, routing_key), exchange, routing_key)


def _note_death(headers: dict[str, Any], queue: str, reason: str, came_by: RawMessage) -> None:
    """Write down what became of it, in RabbitMQ's words."""
    deaths = [dict(death) for death in headers.get("x-death") or ()]
    known = next((death for death in deaths if (death.get("queue"), death.get("reason")) == (queue, reason)), None)
    if known is None:
        known = {
            "queue": queue,
            "reason": reason,
            "count": 0,
            "exchange": came_by.get("exchange"),
            "routing-keys": [came_by.get("routing_key")],
        }
        deaths.insert(0, known)
    known["count"] += 1
    headers["x-death"] = deaths
    headers.setdefault("x-first-death-queue", queue)
    headers.setdefault("x-first-death-reason", reason)
