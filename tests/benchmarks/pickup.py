"""How soon an idle worker begins a task that was just published."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles

from tests.benchmarks.subjects import Subject
from tests.benchmarks.worker import wait_until_ready, workers


def measure(subject: Subject, count: int) -> dict[str, float]:
    """Percentiles over *count* tasks, from before ``delay()`` to the task's first line."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with workers(subject, directory):
            wait_until_ready(subject, directory)
            return percentiles(subject.publish("pickup", count, directory)["latencies_ms"])


def percentiles(latencies_ms: Sequence[float]) -> dict[str, float]:
    """The latencies that half, 95 and 99 of 100 tasks stay below."""
    cuts = quantiles(latencies_ms, n=100, method="inclusive")
    return {"p50_ms": cuts[49], "p95_ms": cuts[94], "p99_ms": cuts[98]}
