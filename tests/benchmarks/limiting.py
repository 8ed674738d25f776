"""What limits cost: claims and settlements of limited messages, and those of others, by one host on one connection."""

from __future__ import annotations

import time
from collections.abc import Callable

from atomic_celery.config import Settings
from atomic_celery.gate import Gate
from atomic_celery.store import open_store
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import Held, Holder, Lane, Limit, NewMessage, Settlement, Turn
from atomic_celery.store.store import Store
from tests.benchmarks.database import Database

_HOLDER = Holder("bench", "bench")
_CLAIMED_AT_ONCE = 10
_LEASE_MS = 30_000
_KEYS = 200

LimitOf = Callable[[int], "Limit | None"]


def measure(database: Database, count: int) -> dict[str, float]:
    """Return messages per second: unlimited, under one wide limit, under many keys, and one at a time."""
    store = open_store(f"atomic+{database.location}", Settings())
    store.schema.migrate()
    queue_id = store.queues.declare(QueueSpec(name="bench")).id
    kinds: dict[str, LimitOf] = {
        "unlimited": lambda _: None,
        "one_limit_of_50": lambda _: Limit("wide", "bench", max_running=50),
        f"{_KEYS}_keys": lambda number: Limit(f"key:{number % _KEYS}", "bench", max_running=2),
        "one_at_a_time": lambda _: Limit("one", "bench", max_running=1),
    }
    rates = {f"{name}_per_s": _rate(store, queue_id, limit_of, count) for name, limit_of in kinds.items()}
    store.close()
    return rates


def _rate(store: Store, queue_id: int, limit_of: LimitOf, count: int) -> float:
    store.messages.publish([NewMessage(queue_id, "x" * 700, limit=limit_of(number)) for number in range(count)])
    gate, lanes = Gate(store, _HOLDER, _LEASE_MS), [Lane(queue_id, priority) for priority in range(9, -1, -1)]
    held: list[Held] = []

    def claim(limit: int) -> Turn:
        return store.messages.turn(_HOLDER, Settlement(held), lanes, limit, _LEASE_MS)

    done, began_s = 0, time.perf_counter()
    while done < count:
        turn = gate.turn(lanes, _CLAIMED_AT_ONCE, [message_id for message_id, _ in held], claim)
        done += len(turn.settled)
        held = [claimed.held for claimed in turn.claimed]
    return count / (time.perf_counter() - began_s)
