"""Real beats as processes of their own, and the runs that they enqueued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from atomic_celery.store.store import Store
from atomic_celery.store.terms import Standing
from tests.support.freezing import freeze
from tests.support.waiting import wait_until
from tests.support.workers import APPLICATION, ROOT, Fleet

TERM = "beat/application"
TERM_S, EVERY_S = 3.0, 0.5
QUICK = {"ATOMIC_TERM": f"{TERM_S:g}"}


@dataclass(frozen=True)
class Run:
    """One run of a periodic task, as it was enqueued."""

    task: str
    task_id: str
    due: str
    priority: int
    headers: Mapping[str, Any] = field(repr=False)
    body: list[Any] = field(repr=False)


class Runs:
    """Everything that beats enqueued, taken out of the queue and kept, in order."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._taken: list[Run] = []

    def all(self) -> list[Run]:
        """Take what came meanwhile; return all since the beginning."""
        queue = self._store.queues.get("celery")
        while queue is not None and (messages := self._store.messages.take([queue.id], 1000)):
            self._taken += [_run(message.payload) for message in messages]
        return list(self._taken)

    def numbers(self, task: str = "tick") -> list[int]:
        """Return the due times of a task's runs in whole intervals, in the order of their enqueuing."""
        return [int(_seconds(run.due) / EVERY_S) for run in self.all() if run.task == task]

    def twice(self) -> list[Run]:
        """Return the runs that are there more than once."""
        counts = Counter((run.task, run.due) for run in self.all())
        return [run for run in self.all() if counts[run.task, run.due] > 1]


def _run(payload: str) -> Run:
    message = json.loads(payload)
    headers = message["headers"]
    return Run(
        headers["task"],
        headers["id"],
        headers["atomic_due"],
        message["properties"]["priority"],
        headers,
        json.loads(message["body"]),
    )


def _seconds(due: str) -> float:
    return datetime.fromisoformat(due).timestamp()


class BeatProcess:
    """A `celery beat -S atomic` on a fleet.

    Args:
        faults: Orders for `ATOMIC_FAULTS`.
        command: What runs, instead of the test application's beat.
    """

    def __init__(
        self,
        fleet: Fleet,
        name: str,
        *,
        faults: str = "",
        env: Mapping[str, str] | None = None,
        application: str = APPLICATION,
        prefix: Sequence[str] = (),
    ) -> None:
        self.fleet, self.name = fleet, name
        self._log = fleet.directory / f"{name}.log"
        command = [*prefix, sys.executable, "-m", "celery", "-A", application, "beat", "-S", "atomic", "-l", "INFO"]
        environment = {**os.environ, **fleet.env, "PYTHONPATH": str(ROOT), **(env or {})}
        if faults:
            environment["ATOMIC_FAULTS"] = faults
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command,
                cwd=fleet.directory,
                env=environment,
                start_new_session=True,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                stdout=log,
            )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has said."""
        return self._log.read_text()

    @property
    def running(self) -> bool:
        """Whether it has not ended, frozen or not."""
        return self._process.poll() is None

    def signal(self, signum: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, signum)

    def freeze(self) -> None:
        """Stop it while it writes nothing: on SQLite, nobody else could write before it goes on."""
        with self.fleet.store.transaction():
            self.fleet.store.now_ms()
            freeze(self.pid)

    def wait(self, deadline_s: float = 60.0) -> int:
        """Wait for its end; return the exit code."""
        wait_until(lambda: not self.running, deadline_s, lambda: f"the end of {self}")
        return int(self._process.returncode)

    def close(self) -> None:
        """Kill it, if it still runs."""
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
            self._process.wait(60)

    def __str__(self) -> str:
        return f"--- {self.name}\n{self.log[-6000:]}"


class Beats:
    """The beats of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.runs = fleet, Runs(fleet.store)
        self._started: list[BeatProcess] = []

    def start(self, name: str, **options: Any) -> BeatProcess:
        """Start one; it is killed at the end of the test at the latest."""
        beat = BeatProcess(self.fleet, name, **options)
        self._started.append(beat)
        return beat

    def leader(self) -> Standing | None:
        """Return who leads at the moment; None when nobody does."""
        standing = self.fleet.store.terms.look(TERM)
        return None if standing is None or standing.free else standing

    def leads(self, beat: BeatProcess) -> bool:
        """Whether it is *beat* that leads."""
        leader = self.leader()
        return leader is not None and leader.holder.split("/")[1] == str(beat.pid)

    def start_leading(self, name: str, **options: Any) -> BeatProcess:
        """Start one and wait until it leads."""
        beat = self.start(name, **options)
        self.wait_until(lambda: self.leads(beat), what=f"{name} leads")
        return beat

    def wait_until(self, predicate: Any, deadline_s: float = 60.0, *, what: str = "") -> Any:
        """Wait for *predicate*; when it does not come true, show what every beat has said."""
        return wait_until(
            predicate, deadline_s, lambda: "\n".join([what, str(self.runs.all()[-20:]), *map(str, self._started)])
        )

    def wait_for_runs(self, count: int, task: str = "tick") -> list[int]:
        """Wait until a task was enqueued so often; return the due times in whole intervals."""
        self.wait_until(lambda: len(self.runs.numbers(task)) >= count, what=f"{count} runs of {task}")
        return self.runs.numbers(task)

    def close(self) -> None:
        """Kill what still runs."""
        for beat in self._started:
            beat.close()
