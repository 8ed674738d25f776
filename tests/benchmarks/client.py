"""A publisher in a process of its own: ``python -m tests.benchmarks.client MODE COUNT``.

Prints one JSON object. Connections are opened, and queues declared, before its clock starts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from celery import group

from tests.benchmarks import application, environment
from tests.support.waiting import wait_until

_WARM_UP = 20
_PICKUP_EVERY_S = 0.05


def single(count: int) -> dict[str, Any]:
    """Publish one by one, as ``delay()`` does."""
    return _timed(count, lambda: [application.noop.delay() for _ in range(count)])


def grouped(count: int) -> dict[str, Any]:
    """Publish as one ``group``."""
    return _timed(count, lambda: group(application.noop.s() for _ in range(count)).apply_async())


def bulk(count: int) -> dict[str, Any]:
    """Publish by one call, which only this package has."""
    from atomic_celery import publish_many  # no peer's process should have to import it

    signatures = (application.noop.s() for _ in range(count))
    return _timed(count, lambda: publish_many(signatures, app=application.app))


def pickup(count: int) -> dict[str, Any]:
    """Publish to an idle worker, at a steady slow pace, and wait for the stamps."""
    stamps = environment.directory() / "stamps"
    started = time.monotonic()
    for number in range(count + _WARM_UP):
        time.sleep(max(0.0, started + number * _PICKUP_EVERY_S - time.monotonic()))
        application.stamp.delay(time.monotonic_ns())
    wait_until(lambda: len(stamps.read_text().splitlines()) == count + _WARM_UP)
    pairs = (map(int, line.split()) for line in stamps.read_text().splitlines())
    latencies_ms = [(began_ns - sent_ns) / 1e6 for sent_ns, began_ns in pairs]
    return {"latencies_ms": latencies_ms[_WARM_UP:]}


def wait(count: int) -> dict[str, Any]:
    """Publish to an idle worker, and wait for the result, again and again."""
    latencies_ms = []
    for _ in range(count + _WARM_UP):
        time.sleep(_PICKUP_EVERY_S)
        began_ns = time.monotonic_ns()
        application.noop.delay().get(timeout=60)
        latencies_ms.append((time.monotonic_ns() - began_ns) / 1e6)
    return {"latencies_ms": latencies_ms[_WARM_UP:]}


def purge(_: int) -> dict[str, Any]:
    """Empty the queue."""
    return {"purged": application.app.control.purge()}


def _timed(count: int, publish: Callable[[], object]) -> dict[str, Any]:
    with application.app.connection_for_write() as connection:
        application.app.amqp.queues["celery"].bind(connection.default_channel).declare()
    application.app.producer_pool.acquire().release()
    started = time.perf_counter()
    publish()
    return {"count": count, "seconds": time.perf_counter() - started}


MODES: dict[str, Callable[[int], dict[str, Any]]] = {
    mode.__name__: mode for mode in (single, grouped, bulk, pickup, wait, purge)
}

if __name__ == "__main__":
    print(json.dumps(MODES[sys.argv[1]](int(sys.argv[2]))))
