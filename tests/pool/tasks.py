"""The tasks that children run in these tests. Each says what it does by files in a directory it is given."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery

from atomic_celery import current
from atomic_celery.concurrency import child

app = Celery("pool-tests", broker="memory://", backend="cache+memory://", set_as_current=False)
app.conf.task_ignore_result = True

SLEEPER = "import time; time.sleep(600)"


def wait_for(path: str | Path) -> None:
    """Return when *path* exists."""
    while not os.path.exists(path):
        time.sleep(0.002)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def pid() -> int:
    return os.getpid()


@app.task
def size_of(blob: str) -> int:
    return len(blob)


@app.task(bind=True)
def blob(self: Any, size: int) -> None:
    self.request.stack = None
    raise Blob("x" * size)


class Blob(Exception):
    """An exception of any size."""


@app.task
def mark(directory: str, name: str) -> None:
    """Append one line to *name*: how often it ran can be counted."""
    with open(f"{directory}/{name}", "a") as file:
        file.write(f"{os.getpid()}\n")


@app.task
def note(directory: str, text: str) -> None:
    with open(f"{directory}/notes", "a") as file:
        file.write(f"{text}\n")


@app.task
def hold(directory: str, name: str) -> None:
    """Say `<name>.began`, then wait for `<name>.go`."""
    Path(directory, f"{name}.began").write_text(str(os.getpid()))
    wait_for(f"{directory}/{name}.go")


@app.task
def hold_tidily(directory: str, name: str) -> None:
    """As `hold`, and clean up when interrupted."""
    try:
        hold(directory, name)
    finally:
        Path(directory, f"{name}.tidied").touch()


@app.task
def hold_deaf(directory: str, name: str) -> None:
    """As `hold`, out of reach of every signal that can be handled."""
    for signum in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    Path(directory, f"{name}.began").write_text(str(os.getpid()))
    ctypes.CDLL(None).sleep(600)


@app.task
def hold_until_soft_limit(directory: str, name: str) -> str:
    """As `hold`, and return when the soft time limit is over."""
    try:
        hold(directory, name)
    except SoftTimeLimitExceeded:
        Path(directory, f"{name}.soft").touch()
    return "late"


@app.task
def leave(how: str) -> None:
    """End the process."""
    if how == "sys.exit":
        sys.exit(3)
    if how == "os._exit":
        os._exit(4)
    if how == "segfault":
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.string_at(0)
    os.kill(os.getpid(), getattr(signal, how))


def exhaust() -> None:
    """Not a task: a trace would catch this."""
    raise MemoryError("more than there is")


@app.task
def spawn(directory: str) -> None:
    """Start a process, one in a session of its own, and one orphan of that kind; then wait for ever."""
    pids = [start_sleeper().pid, start_sleeper(session=True).pid, start_orphan(directory)]
    publish(directory, "pids", pids)
    wait_for(f"{directory}/never")


@app.task
def spawn_and_return(directory: str) -> None:
    publish(directory, "pids", [start_sleeper().pid, start_sleeper(session=True).pid, start_orphan(directory)])


@app.task
def spawn_short_orphans(count: int) -> None:
    """Leave *count* orphans behind that end at once."""
    for _ in range(count):
        subprocess.run(["sh", "-c", "sleep 0.01 & exit 0"], check=True)


def start_sleeper(*, session: bool = False) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=session)


def start_orphan(directory: str) -> int:
    """Start a process in its own session whose parent ends at once."""
    code = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1]],"
        " start_new_session=True, stdout=subprocess.DEVNULL).pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, SLEEPER], stdout=subprocess.PIPE, check=True, text=True, cwd=directory
    )
    return int(done.stdout)


def publish(directory: str, name: str, pids: list[int]) -> None:
    """Write *pids* so that a reader sees all or nothing."""
    temporary = Path(directory, f".{name}")
    temporary.write_text(" ".join(map(str, pids)))
    temporary.rename(Path(directory, name))


@app.task
def eat(megabytes: int) -> int:
    """Use memory for a moment; return this process's id."""
    bytearray(megabytes * 1024 * 1024).count(1)
    return os.getpid()


@app.task
def whose() -> list[Any]:
    """Say which message runs here, and leave a write in the outbox."""
    message = current.running()
    assert message is not None
    assert message.outbox is not None
    message.outbox.entries.append(("published by", message.message_id))
    return [message.message_id, message.fence, message.task_id, child.trusted()]


@app.task
def trusted_until_false(directory: str, name: str) -> None:
    """Say `<name>.began`, then `<name>.fenced` when the lease is over; deaf, so that nothing but the clock tells."""
    Path(directory, f"{name}.began").touch()
    while child.trusted():
        time.sleep(0.001)
    Path(directory, f"{name}.fenced").touch()
    wait_for(f"{directory}/never")


@app.task
def fail(message: str) -> None:
    raise ValueError(message)
