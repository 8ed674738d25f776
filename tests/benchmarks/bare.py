"""The same work in bare SQL on one connection: what the database itself allows, without Celery."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from tests.benchmarks.database import Database
from tests.benchmarks.pickup import percentiles

_BATCH = 100
_PAYLOAD = "x" * 700  # about what a no-op task's message measures
_SCHEMA = """
CREATE TABLE bare (id bigserial PRIMARY KEY, claimed boolean NOT NULL DEFAULT false, payload text);
"""
_INSERT = "INSERT INTO bare (payload) SELECT %s FROM generate_series(1, %s)"
_CLAIM = """
UPDATE bare SET claimed = true WHERE id IN (
    SELECT id FROM bare WHERE NOT claimed ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING id, payload
"""
_DELETE = "DELETE FROM bare WHERE id = ANY(%s)"


def measure(database: Database, seconds: float, latency_count: int) -> dict[str, float]:
    """Messages a second published and drained, one by one and by the hundred; wake-up latency."""
    database.execute(_SCHEMA)
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        singly = _rate(lambda: _insert(cursor, 1), seconds)
        batched = _rate(lambda: _insert(cursor, _BATCH), seconds)
        drained_singly = _rate(lambda: _drain(cursor, 1), seconds)
        drained = _rate(lambda: _drain(cursor, _BATCH), seconds)
    latency = percentiles(list(_latencies_ms(database, latency_count)))
    return {
        "insert_1_per_s": singly,
        "insert_100_per_s": batched,
        "drain_1_per_s": drained_singly,
        "drain_100_per_s": drained,
        "pickup_p50_ms": latency["p50_ms"],
        "pickup_p95_ms": latency["p95_ms"],
    }


def _rate(work: Callable[[], int], seconds: float) -> float:
    done = 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds and (count := work()):
        done += count
    return done / (time.perf_counter() - started)


def _insert(cursor: Any, count: int) -> int:
    cursor.execute(_INSERT, (_PAYLOAD, count))
    return count


def _drain(cursor: Any, count: int) -> int:
    ids = _claim(cursor, count)
    cursor.execute(_DELETE, (ids,))
    return len(ids)


def _claim(cursor: Any, count: int) -> list[int]:
    cursor.execute(_CLAIM, (count,))
    return [row[0] for row in cursor.fetchall()]


def _latencies_ms(database: Database, count: int) -> Iterator[float]:
    database.execute("TRUNCATE bare")
    with closing(database.connect()) as sender, closing(database.connect()) as receiver:
        receiver.cursor().execute("LISTEN bare")
        for _ in range(count):
            sent = time.perf_counter()
            sender.cursor().execute(_INSERT + "; NOTIFY bare", (_PAYLOAD, 1))
            select.select([receiver], [], [])
            _claim(receiver.cursor(), 1)
            yield (time.perf_counter() - sent) * 1e3
