"""One Celery worker in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.benchmarks import environment
from tests.benchmarks.subjects import Subject
from tests.support.waiting import wait_until


@contextmanager
def workers(subject: Subject, directory: Path) -> Iterator[None]:
    """The subject's workers, started; stopped and gone at the end."""
    with ExitStack() as running:
        for number in range(subject.worker_count):
            running.enter_context(_worker(subject, directory, number))
        yield


def wait_until_ready(subject: Subject, directory: Path) -> None:
    """Return once every worker of *subject* takes tasks."""
    wait_until(lambda: len(list(directory.glob("ready-*"))) == subject.worker_count, 60)


@contextmanager
def _worker(subject: Subject, directory: Path, number: int) -> Iterator[None]:
    command = [
        *(sys.executable, "-m", "celery", "-A", "tests.benchmarks.application", "worker"),
        *("--pool", subject.pool, "--concurrency", str(subject.concurrency)),
        *("--loglevel", "WARNING", "--hostname", f"{subject.name}{number}@benchmark"),
    ]
    with (directory / f"worker-{number}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=environment.variables(subject.celery, directory),
            cwd=environment.ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes], timeout_s: float = 30.0) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
