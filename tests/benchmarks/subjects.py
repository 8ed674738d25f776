"""What is measured: Celery over one broker, ready to be published to and drained."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from importlib import resources, util
from pathlib import Path
from typing import Any

from tests.benchmarks import environment, servers
from tests.benchmarks.database import Database, temporary
from tests.support.postgres import Postgres


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Celery over one broker.

    ``drain_count`` is chosen so that one drain takes some seconds, not longer.
    ``results`` is what else is configured when results are stored.
    ``backlog`` tells how many messages are not settled yet, claimed ones too.
    """

    name: str
    celery: Mapping[str, Any]
    backlog: Callable[[], int]
    drain_count: int
    results: Mapping[str, Any] = field(default_factory=lambda: {"result_backend": "atomic"})
    pool: str = "prefork"
    worker_count: int = 1
    concurrency: int = 2
    database: Database | None = None
    modes: tuple[str, ...] = ("single", "grouped")

    def publish(self, mode: str, count: int, directory: Path) -> dict[str, Any]:
        """Run the client and return what it says."""
        command = [sys.executable, "-m", "tests.benchmarks.client", mode, str(count)]
        done = subprocess.run(
            command,
            env=environment.variables(self.celery, directory),
            cwd=environment.ROOT,
            stdout=subprocess.PIPE,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def _require(*modules: str) -> None:
    for module in modules:
        if util.find_spec(module) is None:
            raise servers.NotInstalledError(f"Python package {module} not found")


@contextmanager
def rabbitmq(directory: Path, server: Postgres) -> Iterator[Subject]:
    """Celery over RabbitMQ, with results in PostgreSQL."""
    with servers.RabbitNode(directory).running() as node, temporary(server) as database:
        yield Subject(
            name="rabbitmq",
            celery={"broker_url": f"amqp://guest@127.0.0.1:{node.port}//", "task_acks_late": True},
            backlog=node.backlog,
            drain_count=6_000,
            results={"result_backend": database.url("db+postgresql+psycopg2")},
        )


@contextmanager
def redis(directory: Path, server: Postgres) -> Iterator[Subject]:
    """Celery over Redis."""
    _require("redis")
    from redis import Redis

    with servers.redis(directory) as port, Redis(port=port) as client:
        yield Subject(
            name="redis",
            celery={"broker_url": f"redis://127.0.0.1:{port}/0", "task_acks_late": True},
            backlog=lambda: int(client.llen("celery")) + int(client.hlen("unacked")),
            drain_count=3_000,
            results={"result_backend": f"redis://127.0.0.1:{port}/1"},
        )


@contextmanager
def pgmq(directory: Path, server: Postgres) -> Iterator[Subject]:
    """Celery over PGMQ, woken by NOTIFY."""
    _require("pgmq", "psycopg_pool")
    with temporary(server) as database:
        database.execute("CREATE SCHEMA pgmq")
        database.execute((resources.files("pgmq") / "sql" / "pgmq.sql").read_text())
        yield Subject(
            name="pgmq",
            celery={
                "broker_url": database.url("pgmq"),
                "task_acks_late": True,
                "broker_transport_options": {"init_extension": False, "use_notify": True},
            },
            backlog=lambda: int(database.value("SELECT count(*) FROM pgmq.q_celery")),
            drain_count=1_500,
            results={"result_backend": database.url("db+postgresql+psycopg2")},
            database=database,
        )


@contextmanager
def atomic(directory: Path, server: Postgres) -> Iterator[Subject]:
    """Celery over `atomic_celery` on PostgreSQL."""
    with temporary(server) as database:
        subject = Subject(
            name="atomic",
            celery={"broker_url": f"atomic+{database.location}"},
            backlog=lambda: int(database.value(_ATOMIC_BACKLOG)),
            drain_count=20_000,
            pool="atomic",
            database=database,
            modes=(*Subject.modes, "bulk"),
        )
        _migrate(subject, directory)
        yield subject


@contextmanager
def atomic_sqlite(directory: Path, server: Postgres) -> Iterator[Subject]:
    """Two workers of Celery over `atomic_celery` on SQLite."""
    path = directory / "atomic.db"
    subject = Subject(
        name="atomic-sqlite",
        celery={"broker_url": f"atomic+sqlite:///{path}"},
        backlog=lambda: _sqlite_value(path, _ATOMIC_BACKLOG),
        drain_count=6_000,
        pool="atomic",
        worker_count=2,
        concurrency=1,
        modes=(*Subject.modes, "bulk"),
    )
    _migrate(subject, directory)
    yield subject


_ATOMIC_BACKLOG = """
SELECT count(*) FROM atomic_message WHERE queue_id IN
    (SELECT id FROM atomic_queue WHERE name = 'celery')
"""


def _migrate(subject: Subject, directory: Path) -> None:
    command = [sys.executable, "-m", "celery", "-A", "tests.benchmarks.application"]
    subprocess.run(
        [*command, "atomic", "migrate"],
        env=environment.variables(subject.celery, directory),
        cwd=environment.ROOT,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def _sqlite_value(path: Path, query: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        value: int = connection.execute(query).fetchone()[0]
        return value


Opener = Callable[[Path, Postgres], AbstractContextManager[Subject]]
OURS: dict[str, Opener] = {"atomic": atomic, "atomic-sqlite": atomic_sqlite}
PEERS: dict[str, Opener] = {"rabbitmq": rabbitmq, "redis": redis, "pgmq": pgmq}
