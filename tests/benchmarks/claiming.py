"""What a claim costs however full the queue is, and while an old snapshot keeps dead rows from being cleared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import closing

from atomic_celery.config import Settings
from atomic_celery.lanes import Lanes
from atomic_celery.store import open_store
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import Holder, NewMessage
from atomic_celery.store.store import Store
from tests.benchmarks.database import Database

_BATCH = 10
_PUBLISHED_AT_ONCE = 1_000
_HOLDER = Holder("bench", "bench")


def measure(database: Database, depths: tuple[int, ...], dead_count: int, claim_count: int) -> dict[str, float]:
    """Milliseconds a claim of ten takes, as the median: at each depth, and with *dead_count* dead rows in front."""
    store = open_store(f"atomic+{database.location}", Settings())
    store.schema.migrate()
    queue_id = store.queues.declare(QueueSpec(name="bench")).id
    values: dict[str, float] = {}
    filled = 0
    for depth in depths:
        _fill(store, queue_id, depth - filled)
        filled = depth
        database.execute("ANALYZE")
        values[f"at_{depth}_ms"] = _median_ms(_claims(store, queue_id, settled=False), claim_count)
    with closing(database.connect()) as reader:
        cursor = reader.cursor()
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT count(*) FROM atomic_setting")
        claim = _claims(store, queue_id, settled=True)
        for _ in range(dead_count // _BATCH):
            claim()
        values[f"dead_{dead_count}_ms"] = _median_ms(claim, claim_count)
        cursor.execute("ROLLBACK")
    store.close()
    first = values[f"at_{depths[0]}_ms"]
    return values | {"deepest/first": values[f"at_{depths[-1]}_ms"] / first, "dead/first": _last(values) / first}


def _last(values: dict[str, float]) -> float:
    return list(values.values())[-1]


def _fill(store: Store, queue_id: int, count: int) -> None:
    message = NewMessage(queue_id=queue_id, payload="x" * 700)
    for _ in range(count // _PUBLISHED_AT_ONCE):
        store.messages.publish([message] * _PUBLISHED_AT_ONCE)


def _claims(store: Store, queue_id: int, *, settled: bool) -> Callable[[], float]:
    """Return a claim as a host makes it, with its cursor; it says how long it took. *settled*: completed after that."""
    lanes = Lanes()

    def claim() -> float:
        wanted = lanes.of([queue_id], from_the_start=False)
        started = time.perf_counter()
        claimed = store.messages.claim(_HOLDER, wanted, _BATCH, 30_000)
        took_s = time.perf_counter() - started
        assert len(claimed) == _BATCH, "the queue ran dry"
        lanes.passed(claimed)
        if settled:
            store.messages.complete([message.held for message in claimed])
        return took_s

    return claim


def _median_ms(claim: Callable[[], float], count: int) -> float:
    return statistics.median(claim() for _ in range(count)) * 1e3
