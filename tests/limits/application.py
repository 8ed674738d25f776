"""Tasks that are limited over all hosts, and say in the ledger when they began and ended."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from atomic_celery import config
from atomic_celery.store import open_store
from tests.limits.conftest import LIMITS
from tests.support import application
from tests.support.application import _note, _wait_for, app

gate = application.gate


def _busy(name: str, seconds: float) -> None:
    _note(f"begin {name} {time.monotonic():.6f} {os.getppid()}")
    time.sleep(seconds)
    _note(f"end {name} {time.monotonic():.6f} {os.getppid()}")


@app.task(**LIMITS["two_at_once"])
def two_at_once(number: int, seconds: float = 0.2) -> None:
    """Take some time."""
    _busy(str(number), seconds)


@app.task(**LIMITS["two_that_wait"])
def two_that_wait(number: int, path: str) -> None:
    """Wait until a file is there."""
    _note(f"begin {number} {time.monotonic():.6f} {os.getppid()}")
    _wait_for(path)
    _note(f"end {number} {time.monotonic():.6f} {os.getppid()}")


@app.task(**LIMITS["one_a_tenant"])
def one_a_tenant(tenant: str, number: int, seconds: float = 0.1) -> None:
    """Take some time on behalf of somebody."""
    _busy(f"{tenant}-{number}", seconds)


@app.task(bind=True, **LIMITS["five_a_second"])
def five_a_second(self, number: int) -> None:
    """Write down when it was claimed, by the database's clock."""
    store = open_store(os.environ["TEST_BROKER"], config.from_sources())
    view = store.reads.message(self.request.properties["atomic"]["id"])
    store.close()
    _note(f"claimed {view.claimed_ms} {os.getppid()}")


@app.task(bind=True, **LIMITS["once"])
def once(self, key: str, path: str) -> str:
    """End when a file is there."""
    _note(f"begin {key} {self.request.id}")
    _wait_for(path)
    return key


@app.task(bind=True, **LIMITS["once_queued"])
def once_queued(self, key: str, path: str) -> str:
    """The same."""
    _note(f"begin {key} {self.request.id}")
    _wait_for(path)
    return key


@app.task(bind=True, max_retries=5, **LIMITS["once_retrying"])
def once_retrying(self, times: int) -> int:
    """Retry so many times."""
    _note(f"retry {self.request.retries}")
    if self.request.retries < times:
        raise self.retry(countdown=0)
    return self.request.retries


@app.task(bind=True)
def child(self, number: int, seconds: float = 0.1) -> int:
    """Take some time, and say whose it was."""
    _note(f"begin {number} {time.monotonic():.6f} {self.request.root_id}")
    time.sleep(seconds)
    _note(f"end {number} {time.monotonic():.6f} {self.request.root_id}")
    return number


def _try(task: Any, times: int, how: str) -> None:
    _note(f"try {task.request.id}")
    if task.request.retries < times and how == "retries":
        raise task.retry(countdown=0.2 * (task.request.retries % 2))
    if task.request.properties.get("atomic", {}).get("crashes", 0) < times and how == "crashes":
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, max_retries=5)
def stubborn(self, times: int, how: str) -> None:
    """End after so many retries, or crashes."""
    _try(self, times, how)


@app.task(bind=True, max_retries=5, acks_late=False)
def stubborn_early(self, times: int) -> None:
    """End after so many retries, each settled before it begins."""
    _try(self, times, "retries")


@app.task(bind=True)
def spender(self, cost: float) -> None:
    """Cost something."""
    self.spend(cost=cost, tokens=1)
    _note(f"spent {cost}")


@app.task(bind=True)
def endless(self, listens: bool) -> str:
    """Go on for ever, or until the root is cancelled."""
    _note("begun")
    while not (listens and self.is_cancelled()):
        time.sleep(0.05)
    _note("listened")
    return "listened"


@app.task(bind=True)
def parent(self, count: int) -> None:
    """Send children."""
    for number in range(count):
        child.delay(number)


@app.task(bind=True)
def crowding(self, count: int, path: str) -> None:
    """Send a great many children one by one, and end when a file is there."""
    for number in range(count):
        child.delay(number, 0.0)
    _note("sent")
    _wait_for(path)
