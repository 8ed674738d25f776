"""A fleet that something goes wrong with, and what has to be true in the end whatever that was."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
from celery import Celery
from celery.result import AsyncResult

from atomic_celery.publishing import publish_many
from tests.faults.witness import Witness
from tests.support.workers import Fleet, WorkerProcess

TASKS = "tests.faults.tasks"
LEASE_S, MARGIN_S = 12.0, 5.0
SHORT = {
    "ATOMIC_LEASE": f"{LEASE_S:g}",
    "ATOMIC_LEASE_MARGIN": f"{MARGIN_S:g}",
    "ATOMIC_RENEW_EVERY": "1",
    "ATOMIC_STATEMENT_TIMEOUT": "5",
    "ATOMIC_CONNECT_TIMEOUT": "5",
}
"""For hosts that are to lose their leases. One may be 5 s late on a slow machine before it matters."""

LONG = {"ATOMIC_LEASE": "60", "ATOMIC_LEASE_MARGIN": "1", "ATOMIC_RENEW_EVERY": "10", "ATOMIC_STATEMENT_TIMEOUT": "30"}
"""For hosts that are not, and for tests that would not end in time if anybody waited for a lease."""

OBSERVED_WITHIN_S = 60.0


class Scene:
    """Workers on a database, what they ran, and a witness.

    Args:
        url: An empty database, as SQLAlchemy names it.
        settings: Over those of `SHORT`.
        broker: How the workers reach the database, when that is not *url*.
        tasks: The module of the tasks.
    """

    def __init__(
        self,
        url: str,
        directory: Path,
        *,
        settings: dict[str, str] | None = None,
        broker: str | None = None,
        tasks: str = TASKS,
    ) -> None:
        self.url, self._tasks = url, tasks
        self.fleet = Fleet(
            url, directory, conf={"imports": [tasks]}, broker=broker, settings={**SHORT, **(settings or {})}
        )
        self.fleet.env["TEST_RESULTS"] = "atomic"
        self.app = Celery("application", broker=self.fleet.url, backend="atomic", set_as_current=False)
        self.store, self.directory = self.fleet.store, directory
        self.witness = Witness(url)
        self.sent: dict[str, AsyncResult[int]] = {}

    def worker(self, name: str, **options: Any) -> WorkerProcess:
        """Start a worker and wait until it is ready."""
        worker = self.fleet.worker(name, **options).start()
        worker.wait_line("ready", OBSERVED_WITHIN_S)
        return worker

    def successor(self, name: str = "successor", **env: str) -> WorkerProcess:
        """Start a worker that reaches the database by no detour, and whose leases are as long as need be."""
        return self.worker(name, env={**LONG, "TEST_BROKER": self.fleet.url, **env})

    def send(self, name: str) -> str:
        """Publish the gate task *name*; return its task id."""
        self.sent[name] = self.app.send_task(f"{self._tasks}.gate", args=[name, str(self.directory)])
        return str(self.sent[name].id)

    def send_many(self, task: str, arguments: Iterable[tuple[Any, ...]]) -> list[str]:
        """Publish a task again and again; return the task ids."""
        task = f"{self._tasks}.{task}"
        signatures = (self.app.signature(task, args=each) for each in arguments)
        return [str(result.id) for result in publish_many(signatures, app=self.app)]

    def begun(self, name: str, fence: int = 1) -> int:
        """Wait until an attempt has begun; return its process id."""
        begun = self.directory / f"{name}.begun.{fence}"
        self.wait_until(begun.exists, f"attempt {fence} of {name} has begun")
        return int(begun.read_text().split()[0])

    def clock_error_s(self, name: str, fence: int = 1) -> float:
        """Return by how much the wall clock was wrong where an attempt began, as far as the file system can tell."""
        begun = self.directory / f"{name}.begun.{fence}"
        return float(begun.read_text().split()[1]) - begun.stat().st_mtime

    def has_begun(self, name: str, fence: int) -> bool:
        """Whether an attempt has begun."""
        return (self.directory / f"{name}.begun.{fence}").exists()

    def open(self, name: str, fence: int | None = None) -> None:
        """Let an attempt, or all of them, go on to the end."""
        (self.directory / (name if fence is None else f"{name}.{fence}")).touch()

    def wait_until(self, predicate: Any, what: str) -> Any:
        """Wait for *predicate*; the time allowed decides nothing but when a test has failed."""
        return self.fleet.wait_until(predicate, OBSERVED_WITHIN_S, what=what)

    def wait_ended(self, name: str) -> None:
        """Wait until the message of a task was completed."""
        self.wait_until(lambda: self.witness.of(self.sent[name].id, "ended"), f"{name} has ended")

    def kill(self, worker: WorkerProcess) -> int:
        """Kill a worker, as the end of its machine would; return the database's time shortly before."""
        before_ms = self.store.now_ms()
        worker.signal(signal.SIGKILL)
        assert worker.wait(OBSERVED_WITHIN_S) == -signal.SIGKILL
        return before_ms

    def ends_well(self) -> None:
        """Wait until nothing is left to do, end the workers that live, and check what must always hold."""
        self.wait_until(lambda: not self.fleet.unfinished(), "every message is settled")
        for worker in self.fleet.workers:
            if worker.pid in self._processes():
                worker.signal(signal.SIGTERM)
                assert worker.wait(OBSERVED_WITHIN_S) == 0, f"a worker was not well any more\n{worker}"
        self.wait_until(lambda: not self._processes(), "no process is left behind")
        assert self.witness.problems() == []
        assert self.store.reads.misplaced() == []
        rows, completed = self.fleet.ledger.counts(), self.witness.completed_under()
        assert max(rows.values(), default=1) == 1, f"an attempt ran twice: {rows}"
        for name, result in self.sent.items():
            fence = completed[str(result.id)]
            assert rows[f"{name} {fence}"] == 1, f"{name} was completed under fence {fence} without being run: {rows}"
            assert (result.state, result.result) == ("SUCCESS", fence), "the result is that of the attempt that counts"

    def _processes(self) -> set[int]:
        """Return every process that lives and descends from one of our workers, whatever became of its parents."""
        return {process.pid for process in psutil.process_iter() if self._is_ours(process)}

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            ours = self.fleet.settings["ATOMIC_STATE_DIR"]
            return process.pid != os.getpid() and process.environ().get("ATOMIC_STATE_DIR") == ours
        except psutil.Error:
            return False

    def close(self) -> None:
        """Kill what still runs."""
        self.app.close()
        self.fleet.close()


def scenes(url: str, directory: Path, **options: Any) -> Iterator[Scene]:
    """Yield a scene, and clear it up."""
    scene = Scene(url, directory, **options)
    try:
        yield scene
    finally:
        scene.close()
