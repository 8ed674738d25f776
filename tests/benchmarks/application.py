"""The Celery application that every subject runs; its configuration comes from the environment."""

from __future__ import annotations

import os
import time
from functools import cache

from celery import Celery, signals

from tests.benchmarks import environment, tally

app = Celery("benchmark", set_as_current=True)
app.conf.update({"task_ignore_result": True, "broker_connection_retry_on_startup": True, **environment.celery()})


@app.task
def noop() -> None:
    """Do nothing."""


@app.task
def stamp(sent_ns: int) -> None:
    """Write down when this task was sent and when it began."""
    os.write(_stamps(), f"{sent_ns} {time.monotonic_ns()}\n".encode())


@cache
def _stamps() -> int:
    return os.open(environment.directory() / "stamps", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


@cache
def _counter() -> tally.Counter:
    return tally.Counter(environment.directory())


@signals.task_postrun.connect
def _count(**_: object) -> None:
    _counter().add()


@signals.worker_ready.connect
def _announce(**_: object) -> None:
    (environment.directory() / f"ready-{os.getpid()}").touch()
