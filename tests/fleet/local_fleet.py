"""A real controller that starts and stops real workers on this machine, and what is seen of them over time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from celery import Celery

from atomic_celery.publishing import publish_many
from tests.support.waiting import wait_until
from tests.support.workers import APPLICATION, ROOT, Fleet

TASKS = "tests.fleet.tasks"


@dataclass(frozen=True)
class Seen:
    """The fleet at one moment."""

    at_s: float
    hosts: int
    unfinished: int


class LocalFleet:
    """One database, one controller, as many workers as it wants."""

    def __init__(self, url: str, directory: Path, *, max_hosts: int, slots: int, idle_drain_ms: int = 2000) -> None:
        self.fleet = Fleet(
            url, directory, conf={"imports": [TASKS]}, quick=False, settings={"ATOMIC_REPORT_EVERY": "1"}
        )
        self.store = self.fleet.store
        self._app = Celery("application", broker=self.fleet.url, set_as_current=False)
        self._notes = directory / "workers"
        configured = {
            "kind": "local",
            "app": APPLICATION,
            "slots": slots,
            "directory": str(self._notes),
            "options": ["--without-heartbeat", "--without-gossip", "--without-mingle"],
        }
        (directory / "local.json").write_text(json.dumps(configured))
        self._command = [
            *(sys.executable, "-m", "celery", "-A", APPLICATION, "atomic", "controller", "--json"),
            *("--provisioner", str(directory / "local.json"), "--max-hosts", str(max_hosts)),
            *("--workers-per-host", str(slots), "--scale-up-queue-depth", "0", "--scale-up-delay", "0"),
            *("--idle-drain", str(idle_drain_ms)),
        ]
        self._log = directory / "controller.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.seen: list[Seen] = []
        self._watching = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> LocalFleet:
        """Start the controller, and watch."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.fleet.directory,
                env={**os.environ, **self.fleet.env, "C_FORCE_ROOT": "1", "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )
        self._watcher.start()
        return self

    def publish(self, first: int, count: int) -> None:
        """Publish *count* short tasks."""
        doze = self._app.signature(f"{TASKS}.doze")
        publish_many((doze.clone(args=(number,)) for number in range(first, first + count)), app=self._app)

    @property
    def instances(self) -> list[str]:
        """Names of the workers that the provisioner knows of."""
        return sorted(path.stem for path in self._notes.rglob("*.json"))

    @property
    def hosts(self) -> list[str]:
        """Instances of the registered hosts."""
        return sorted(host.provider_id or "" for host in self.store.hosts.list())

    def wait_until(self, predicate: object, what: str, deadline_s: float = 100) -> None:
        """Wait for *predicate*; show what everybody has said if it does not come true."""
        wait_until(predicate, deadline_s, lambda: f"{what}\n{self}")  # type: ignore[arg-type]

    def events(self, name: str) -> list[dict[str, object]]:
        """Return the lines that the controller has said of an event."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def end(self) -> int:
        """End the controller with SIGTERM; return its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def _watch(self) -> None:
        began_s = time.monotonic()
        while not self._watching.wait(0.25):
            unfinished = self.store.loads.work(None, 1_000_000)
            self.seen.append(
                Seen(time.monotonic() - began_s, len(self.store.hosts.list()), unfinished.waiting + unfinished.running)
            )

    def close(self) -> None:
        """Kill what still runs."""
        self._watching.set()
        self._watcher.join(60)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(60)
        for path in self._notes.rglob("*.json"):
            note = json.loads(path.read_text())
            try:
                os.killpg(note["pid"], signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._app.close()
        self.fleet.close()

    def __str__(self) -> str:
        logs = [path.read_text()[-3000:] for path in sorted(self._notes.rglob("*.log"))]
        return "\n".join([str(self.seen[-5:]), self._log.read_text()[-6000:], *logs])
