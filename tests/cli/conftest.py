"""Real `celery -A app atomic …` processes beside a store that the test itself looks into."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from atomic_celery.config import Settings
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import Holder, Lane, NewMessage
from atomic_celery.store.store import Store, open_store
from tests.support.hosts import new_host

ROOT = Path(__file__).parents[2]
LEASE_MS = 30_000
PATIENT = {"ATOMIC_STALE_AFTER": "3600", "ATOMIC_CONNECT_TIMEOUT": "60"}
PATIENCE_S = 120.0  # for a process on a busy machine; the limits that are tested are far below


@dataclass(frozen=True)
class CommandLine:
    """A project whose `broker_url` is a test database."""

    directory: Path

    def command(self, *words: str) -> list[str]:
        """Return the command line of `celery -A app …`."""
        return [sys.executable, "-m", "celery", "-A", "app", *words]

    @property
    def environment(self) -> dict[str, str]:
        """An environment in which this checkout is installed, and hosts that only a test registered do not go stale."""
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("ATOMIC_", "CELERY_", "NO_COLOR"))
        }
        return kept | {"PYTHONPATH": f"{ROOT}{os.pathsep}{self.directory}", **PATIENT}

    def celery(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `celery -A app …` to its end."""
        return subprocess.run(
            self.command(*words),
            capture_output=True,
            check=False,
            cwd=self.directory,
            env=self.environment | dict(env or {}),
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=PATIENCE_S,
        )

    def __call__(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `celery -A app atomic …` to its end."""
        return self.celery("atomic", *words, env=env)

    def json(self, *words: str) -> Any:
        """Run a command with ``--json``, which must succeed, and return its document."""
        run = self(*words, "--json")
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)


@dataclass(frozen=True)
class World:
    """What a test sets up in the store."""

    store: Store

    def queue(self, name: str = "celery", **spec: Any) -> int:
        """Declare a queue and return its id."""
        return self.store.queues.declare(QueueSpec(name=name, **spec)).id

    def publish(self, task_id: str, *, queue: str = "celery", payload: str = "{}", **fields: Any) -> int:
        """Publish one message and return its id."""
        fields.setdefault("task_name", "proj.add")
        [message_id] = self.store.messages.publish(
            [NewMessage(self.queue(queue), payload, task_id, priority=3, **fields)]
        )
        assert message_id is not None
        return message_id

    def claim(
        self, queue: str = "celery", *, holder: str = "worker-1", is_host: bool = False, limit: int = 1
    ) -> list[int]:
        """Claim messages and return their ids."""
        lanes, claimer = [Lane(self.queue(queue), 3)], Holder(holder, "boot", is_host)
        return [claimed.id for claimed in self.store.messages.claim(claimer, lanes, limit, LEASE_MS)]

    def register(self, host_id: str, **fields: Any) -> None:
        """Register a host."""
        known = {"name": f"celery@{host_id}", "slots": 4, "queues": ["celery"]}
        self.store.hosts.register(new_host(host_id, **{"boot": "boot", **known, **fields}))


@pytest.fixture
def cli(broker_url: str, tmp_path: Path) -> CommandLine:
    return project(tmp_path, broker_url)


@pytest.fixture
def store(broker_url: str) -> Iterator[Store]:
    opened = open_store(broker_url, Settings())
    opened.schema.migrate()
    yield opened
    opened.close()


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def project(directory: Path, broker_url: str, *, patient: bool = True) -> CommandLine:
    """Write a Celery project with that broker, which waits for its database as long as it takes if it is *patient*."""
    patience = "import tests.support.patience\n" if patient else ""
    app = f"app = Celery('app', broker={broker_url!r})\n"
    (directory / "app.py").write_text(f"{patience}from celery import Celery\n\n{app}")
    return CommandLine(directory)
