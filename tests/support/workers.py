"""Real workers as processes of their own: started, watched by what they print, signalled, killed at crash points.

fleet = Fleet(url, tmp_path)
worker = fleet.worker("w1", slots=2).start()
worker.wait_line("ready")
worker.signal(signal.SIGTERM)
assert worker.wait() == 0
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from celery import Celery

from atomic_celery import config
from atomic_celery.store import open_store
from atomic_celery.store.reads import Filter, MessageView
from atomic_celery.store.store import Store
from tests.support.freezing import freeze, is_frozen
from tests.support.ledger import Ledger
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
APPLICATION = "tests.support.application"

QUICK = {
    "ATOMIC_LEASE": "60",
    "ATOMIC_RENEW_EVERY": "1",
    "ATOMIC_LEASE_MARGIN": "1",
    "ATOMIC_REPORT_EVERY": "0.5",
    "ATOMIC_STALE_AFTER": "30",
    "ATOMIC_RECOVER_EVERY": "0.5",
    "ATOMIC_STATEMENT_TIMEOUT": "30",
    "ATOMIC_CONNECT_TIMEOUT": "30",
}
"""All that tests wait for comes soon, but nobody who stands still for seconds on a busy machine loses anything."""

HASTY = {
    **QUICK,
    "ATOMIC_LEASE": "4.5",
    "ATOMIC_STALE_AFTER": "2",
    "ATOMIC_STATEMENT_TIMEOUT": "2",
    "ATOMIC_CONNECT_TIMEOUT": "2",
}
"""For tests that wait for a lease to run out, a host to be stale or a database to be too late, and for nobody else."""

RENEWED = {**QUICK, "ATOMIC_LEASE": "12", "ATOMIC_STATEMENT_TIMEOUT": "10"}
"""For tests that wait until a lease would have run out, if it had not been renewed."""

LONG_TERM = {"ATOMIC_TERM": "600"}
"""For a beat or a controller that is to lead on, and waits a minute for an answer, however busy the machine is."""


class Fleet:
    """One database, its ledger, the app that publishes to it, and the workers on it.

    Args:
        url: An empty database, as SQLAlchemy names it.
        directory: Where everything else is kept.
        quick: Whether the settings are `QUICK`, under *settings*; else they are the product's own.
        conf: More of the app's settings; must be JSON.
        results: Whether they are kept: in that database, or where a `result_backend` says.
        broker: How the workers reach the database, when that is not *url* (a proxy).
        application: The module of the app and its tasks.
    """

    def __init__(
        self,
        url: str,
        directory: Path,
        *,
        quick: bool = True,
        conf: Mapping[str, Any] | None = None,
        results: bool | str = False,
        broker: str | None = None,
        settings: Mapping[str, str] | None = None,
        application: str = APPLICATION,
    ) -> None:
        self.directory, self.application = directory, application
        self.url, self.broker = f"atomic+{url}", f"atomic+{broker or url}"
        is_sqlite = url.startswith("sqlite")
        beside = (
            f"sqlite:///{directory / 'ledger.db'}"
            if is_sqlite
            else url.replace("postgresql://", "postgresql+psycopg2://")
        )
        self.settings = {**(QUICK if quick else {}), **(settings or {}), "ATOMIC_STATE_DIR": str(directory / "state")}
        self.results = results if isinstance(results, str) else self.url
        self.env = {
            "TEST_BROKER": self.broker,
            "TEST_RESULTS": self.results if results else "",
            "TEST_LEDGER": beside,
            "TEST_CONF": json.dumps(dict(conf or {})),
            **self.settings,
        }
        self.store: Store = open_store(self.url, self._patient(config.from_sources(env=self.settings)))
        self.store.schema.migrate()
        self.ledger = Ledger(beside).create()
        self.workers: list[WorkerProcess] = []
        self.app = self._app(results=bool(results))

    @staticmethod
    def _patient(settings: config.Settings) -> config.Settings:
        """Return settings for who watches workers, and claims nothing: one that stands still must not make it fail."""
        return replace(settings, statement_timeout_s=60.0, connect_timeout_s=60.0, lease_s=120.0)

    def _app(self, *, results: bool) -> Celery:
        """Return an app of this process that publishes to the fleet, straight to the database."""
        app = Celery("application", broker=self.url, backend=self.results if results else None, set_as_current=False)
        app.conf.update(json.loads(self.env["TEST_CONF"]))
        app.conf.task_ignore_result = not results
        return app

    def send(self, name: str, *args: Any, **options: Any) -> Any:
        """Publish a task of the application."""
        return self.app.send_task(f"{self.application}.{name}", args=args, **options)

    def worker(self, name: str = "w", **options: Any) -> WorkerProcess:
        """Return a worker that is not started yet; it is killed with the fleet at the latest."""
        worker = WorkerProcess(self, name, **options)
        self.workers.append(worker)
        return worker

    def gate(self, name: str, *, fence: int = 1) -> int:
        """Wait until the gate task *name* has begun under *fence*; return its process id."""
        begun = self.directory / f"{name}.begun.{fence}"
        wait_until(begun.exists, describe=lambda: f"gate {name} has not begun\n{self.describe()}")
        return int(begun.read_text())

    def begun(self, name: str) -> int:
        """Wait until any attempt of a gate task has begun; return its process. A host may have given it back before."""
        attempts = f"{name}.begun.[0-9]*"
        found = self.wait_until(lambda: sorted(self.directory.glob(attempts)), what=f"gate {name} has begun")
        return int(found[-1].read_text().split()[0])

    def open_gate(self, name: str) -> None:
        """Let the gate task *name* end."""
        (self.directory / name).touch()

    def wait_until(self, predicate: Callable[[], Any], deadline_s: float = 60.0, *, what: str = "") -> Any:
        """Wait for *predicate*; when it does not come true, show what every worker has said."""
        return wait_until(predicate, deadline_s, lambda: f"{what}\n{self.describe()}")

    def wait_done(self, count: int, deadline_s: float = 90.0) -> list[str]:
        """Wait until the ledger has *count* rows; return them."""
        self.wait_until(lambda: len(self.ledger.rows()) >= count, deadline_s, what=f"{count} rows in the ledger")
        return self.ledger.rows()

    def unfinished(self) -> int:
        """Return how many messages of tasks are not settled, up to 100."""
        return len(self.store.reads.messages())

    def running(self) -> list[MessageView]:
        """Return the messages that somebody holds, up to 100."""
        return self.store.reads.messages(Filter(state="running"))

    def describe(self) -> str:
        """Return the state of everything, for a test that failed."""
        return "\n".join(
            [f"messages: {self.store.reads.messages()}", f"ledger: {self.ledger.rows()[-20:]}", *map(str, self.workers)]
        )

    def close(self) -> None:
        """Kill what still runs."""
        for worker in self.workers:
            worker.close()
        self.app.close()
        self.store.close()


class WorkerProcess:
    """A `celery worker` on a fleet.

    Args:
        options: More of the command line.
        faults: Orders for `ATOMIC_FAULTS`: at which points this process and its children stop or die.
    """

    def __init__(
        self,
        fleet: Fleet,
        name: str,
        *,
        slots: int = 1,
        pool: str = "atomic",
        options: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        faults: str = "",
    ) -> None:
        self.fleet, self.name = fleet, name
        self._command = [
            *(sys.executable, "-m", "celery", "-A", fleet.application, "worker", "-n", f"{name}@test"),
            *(
                "-P",
                pool,
                "-c",
                str(slots),
                "-l",
                "INFO",
                "--without-heartbeat",
                "--without-gossip",
                "--without-mingle",
            ),
            *options,
        ]
        self._env = {**os.environ, **fleet.env, "C_FORCE_ROOT": "1", "PYTHONPATH": str(ROOT), **(env or {})}
        if faults:
            self._env["ATOMIC_FAULTS"] = faults
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._log = fleet.directory / f"{name}.log"
        self.lines: list[str] = []

    def start(self) -> WorkerProcess:
        """Start the process; what it prints before is forgotten."""
        self.lines = []
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.fleet.directory,
                env=self._env,
                start_new_session=True,
                stderr=log,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, args=(self._process, self.lines), daemon=True)
        self._reader.start()
        return self

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: list[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            lines.extend(line.rstrip("\n") for line in iter(process.stdout.readline, ""))

    @property
    def pid(self) -> int:
        """The main process's id."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """What it wrote to stderr."""
        return self._log.read_text()

    def events(self, event: str, **fields: Any) -> list[dict[str, str]]:
        """Return the event lines of that name, with those fields, that were printed so far."""
        parsed = [_parse(line) for line in list(self.lines) if line.split(" ", 1)[0] == event]
        wanted = {key: str(value) for key, value in fields.items()}
        return [line for line in parsed if wanted.items() <= line.items()]

    def wait_line(self, event: str, deadline_s: float = 60.0, *, count: int = 1, **fields: Any) -> dict[str, str]:
        """Wait until it has printed *count* such event lines; return the last of them."""

        def seen() -> list[dict[str, str]]:
            events = self.events(event, **fields)
            return events if len(events) >= count else []

        self.fleet.wait_until(lambda: seen() or self._ended(), deadline_s, what=f"{self.name}: {event} {fields}")
        assert seen(), f"{self.name} ended without the line {event} {fields}\n{self}"
        return seen()[-1]

    def wait_degraded(self, why: str) -> str:
        """Wait until it has said that it is degraded for this reason, perhaps after others; return what it said.

        The first may be another: a server that is busy with what a test does to it answers too late, too.
        """

        def seen() -> list[str]:
            return [line["error"] for line in self.events("degraded") if why in line["error"]]

        self.fleet.wait_until(lambda: seen() or self._ended(), what=f"{self.name}: degraded, {why}")
        assert seen(), f"{self.name} ended without having said that it is degraded: {why}\n{self}"
        return seen()[-1]

    def _ended(self) -> bool:
        assert self._process is not None
        assert self._reader is not None
        if self._process.poll() is None:
            return False
        self._reader.join(60)
        return True

    def signal(self, signum: int) -> None:
        """Send a signal to the main process."""
        os.kill(self.pid, signum)

    def freeze(self) -> None:
        """Stop it while it writes nothing: on SQLite, nobody else could write before it goes on."""
        with self.fleet.store.transaction():
            self.fleet.store.now_ms()
            freeze(self.pid)

    def is_stopped(self) -> bool:
        """Whether it stands still."""
        return is_frozen(self.pid)

    def wait(self, deadline_s: float = 60.0) -> int:
        """Wait for its end; return the exit code (negative: the signal that ended it)."""
        process = self._process
        assert process is not None
        assert self._reader is not None
        self.fleet.wait_until(lambda: process.poll() is not None, deadline_s, what=f"the end of {self.name}")
        self._reader.join(60)
        return int(process.returncode)

    def close(self) -> None:
        """Kill it, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)
            os.kill(self.pid, signal.SIGKILL)
            self._process.wait(60)
        if self._reader is not None:
            self._reader.join(60)

    def __str__(self) -> str:
        tail = self._log.read_text().splitlines()[-60:] if self._log.exists() else []
        return "\n".join([f"--- {self.name}: stdout", *self.lines[-40:], f"--- {self.name}: stderr", *tail])


def _parse(line: str) -> dict[str, str]:
    _, *pairs = shlex.split(line)
    return dict(pair.partition("=")[::2] for pair in pairs)
