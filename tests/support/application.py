"""The Celery app that test workers run; configured by the environment, so that it is the same in every process.

| variable | meaning |
|---|---|
| `TEST_BROKER` | `broker_url` |
| `TEST_RESULTS` | `result_backend`; none: results are ignored |
| `TEST_LEDGER` | SQLAlchemy URL of the ledger: a table to which tasks add rows |
| `TEST_CONF` | more settings, as JSON |
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from celery import Celery

from tests.support.ledger import Ledger

app = Celery("application")
app.conf.update(
    broker_url=os.environ["TEST_BROKER"],
    result_backend=os.environ.get("TEST_RESULTS") or None,
    task_ignore_result=not os.environ.get("TEST_RESULTS"),
    worker_hijack_root_logger=True,
    **json.loads(os.environ.get("TEST_CONF", "{}")),
)

_ledger: Ledger | None = None


def _note(what: str) -> None:
    global _ledger
    if _ledger is None:
        _ledger = Ledger(os.environ["TEST_LEDGER"])
    _ledger.add(what)


def _wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.01)


@app.task
def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    """Add many numbers: a chord's body."""
    return sum(numbers)


@app.task
def note(what: str) -> None:
    """Add a row to the ledger."""
    _note(what)


@app.task(acks_late=False)
def early_note(what: str) -> None:
    """Like `note`, but settled before it starts."""
    _note(what)


@app.task(bind=True)
def gate(self, name: str, directory: str) -> str:
    """Say that it has begun, with its process id; end when a file called *name* is there; add a row."""
    begun = Path(directory, f"{name}.begun.{self.request.properties['atomic']['fence']}")
    begun.with_suffix(".tmp").write_text(str(os.getpid()))
    begun.with_suffix(".tmp").rename(begun)
    _wait_for(os.path.join(directory, name))
    _note(name)
    return name


@app.task(acks_late=False)
def early_gate(name: str, directory: str) -> str:
    """Like `gate`, but settled before it starts."""
    begun = Path(directory, f"{name}.begun")
    begun.with_suffix(".tmp").write_text(str(os.getpid()))
    begun.with_suffix(".tmp").rename(begun)
    _wait_for(os.path.join(directory, name))
    _note(name)
    return name


@app.task(bind=True)
def family(self, directory: str) -> None:
    """Start a process in a session of its own and one in ours, say their ids, and wait for ever."""
    sleeper = [sys.executable, "-c", "import time; time.sleep(3600)"]
    ours = subprocess.Popen(sleeper)
    theirs = subprocess.Popen(sleeper, start_new_session=True)
    begun = Path(directory, "family")
    begun.with_suffix(".tmp").write_text(f"{os.getpid()} {ours.pid} {theirs.pid}")
    begun.with_suffix(".tmp").rename(begun)
    time.sleep(3600)


@app.task(bind=True)
def die(self, times: int, how: str = "kill") -> int:
    """End its own process the first *times* times it runs; then return how often it ran."""
    fence = int(self.request.properties["atomic"]["fence"])
    _note(f"die {fence}")
    if fence <= times:
        if how == "exit":
            os._exit(3)
        if how == "sys.exit":
            sys.exit(3)
        os.kill(os.getpid(), getattr(signal, f"SIG{how.upper()}"))
    return fence


@app.task
def come_back_twice(how: str) -> int:
    """Fork, let both processes leave the body, and return how the other one ended."""
    forked = os.fork()
    if forked:
        _, status = os.waitpid(forked, 0)
        return os.waitstatus_to_exitcode(status)
    if how == "sys.exit":
        sys.exit(7)
    if how == "raise":
        raise ValueError("on purpose")
    return -1


@app.task(reject_on_worker_lost=False)
def die_once() -> None:
    """End its own process, and ask to be failed for it."""
    _note("die_once")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, max_retries=5)
def retry(self, times: int, countdown: float = 0.0) -> int:
    """Retry so many times, then return how many there were."""
    _note(f"retry {self.request.retries}")
    if self.request.retries < times:
        raise self.retry(countdown=countdown)
    return int(self.request.retries)


@app.task(bind=True)
def chain_instead(self, first: str, last: str, directory: str) -> None:
    """Replace itself by a chain, and take its time to end: until a file called *last* is there."""
    try:
        self.replace(note.si(first) | note.si(last))
    finally:
        _wait_for(os.path.join(directory, last))


@app.task
def note_failure(request, error, traceback) -> None:
    """Add a row about a task that failed: an error callback."""
    _note(f"failed {request.id} {type(error).__name__}")


@app.task
def fail_over_failure(request, error, traceback) -> None:
    """Fail: an error callback."""
    raise ValueError("on purpose")


@app.task
def run_out_of_memory() -> None:
    """Fail as a task does that asked for more memory than there is."""
    raise MemoryError("too much")


@app.task
def fail() -> None:
    """Raise."""
    raise ValueError("on purpose")
