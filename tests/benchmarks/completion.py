"""How fast tasks are completed whose results are stored, and how soon a caller has one."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from tests.benchmarks import drain
from tests.benchmarks.pickup import percentiles
from tests.benchmarks.subjects import Subject
from tests.benchmarks.worker import wait_until_ready, workers


def measure(subject: Subject, drain_count: int, get_count: int, repetitions: int) -> dict[str, float]:
    """Drain *drain_count* tasks, and wait for *get_count* results one after the other, with results on.

    The latencies are from before ``delay()`` to the return of ``get()``, on an idle worker.
    """
    storing = replace(subject, celery={**subject.celery, "task_ignore_result": False, **subject.results})
    values = drain.measure(storing, drain_count, repetitions)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with workers(storing, directory):
            wait_until_ready(storing, directory)
            waited = percentiles(storing.publish("wait", get_count, directory)["latencies_ms"])
    return {**values, **{f"get_{name}": value for name, value in waited.items()}}
