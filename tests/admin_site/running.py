"""The project's processes: its manage.py, its server, its workers."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.daemons import free_port
from tests.support.waiting import wait_until

PROJECT = Path(__file__).parent
ROOT = PROJECT.parents[1]


@dataclass(frozen=True)
class Site:
    """The project, with its databases."""

    environment: Mapping[str, str]

    @property
    def env(self) -> dict[str, str]:
        """The environment of every process of it."""
        path = os.pathsep.join((str(ROOT), str(PROJECT)))
        return {**os.environ, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "proj.settings", **self.environment}

    def manage(self, *arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Run manage.py."""
        return self.run([sys.executable, "manage.py", *arguments], timeout_s=timeout_s)

    def run(self, command: Sequence[str], *, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Run something in the project."""
        return subprocess.run(
            command, cwd=PROJECT, env=self.env, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    @contextmanager
    def server(self, log: Path) -> Iterator[str]:
        """Serve the site; yields its address."""
        port = free_port()
        address = f"http://127.0.0.1:{port}"
        command = [sys.executable, "manage.py", "runserver", "--noreload", "--insecure", f"127.0.0.1:{port}"]
        with self._process(command, log) as process:
            wait_until(lambda: process.poll() is not None or _answers(address), 120, log.read_text)
            assert process.poll() is None, log.read_text()
            yield address

    @contextmanager
    def worker(self, log: Path, name: str = "w", slots: int = 2) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker."""
        command = [sys.executable, "-m", "celery", "-A", "proj", "worker", "-P", "atomic"]
        command += ["-n", f"{name}@test", "-c", str(slots), "--without-gossip", "--without-mingle"]
        with self._process(command, log, ATOMIC_STATE_DIR=f"{log}.state", C_FORCE_ROOT="1") as process:
            yield process

    @contextmanager
    def _process(self, command: Sequence[str], log: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=PROJECT, env={**self.env, **more}, stdout=file, stderr=file, start_new_session=True
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/admin/login/", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
