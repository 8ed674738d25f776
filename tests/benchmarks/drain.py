"""How fast workers empty a queue of no-op tasks, and what that costs the database."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from tests.benchmarks import tally
from tests.benchmarks.subjects import Subject
from tests.benchmarks.worker import workers
from tests.support.waiting import wait_until

_TIMEOUT_S = 600.0


def measure(subject: Subject, count: int, repetitions: int) -> dict[str, float]:
    """Drain *count* tasks, *repetitions* times; the median of each value.

    ``settle_lag_ms`` is how long after the last task the broker was first seen empty, with no
    message unacknowledged; it includes the time to ask. Costs are those of the whole life of
    the workers, start and stop too, divided by the tasks.
    """
    runs = [_drain(subject, count) for _ in range(repetitions)]
    return {name: median(run[name] for run in runs) for name in runs[0]}


def _drain(subject: Subject, count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        subject.publish("grouped", count, directory)
        before = subject.database and subject.database.cost()
        with workers(subject, directory):
            wait_until(lambda: tally.read(directory).ended >= count, _TIMEOUT_S)
            wait_until(lambda: subject.backlog() == 0, _TIMEOUT_S)
            settled_ns = time.monotonic_ns()
        seen = tally.read(directory)
    values = {
        "tasks_per_s": seen.rate,
        "runs_per_task": seen.ended / count,
        "settle_lag_ms": (settled_ns - seen.last_ns) / 1e6,
    }
    if subject.database and before:
        cost = subject.database.cost() - before
        values["commits_per_task"] = cost.commits / count
        values["wal_bytes_per_task"] = cost.wal_bytes / count
    return values
