"""What the processes of a fleet open is within the budget that doctor computes: counted by the server."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path

import pytest

from atomic_celery import connections
from atomic_celery.config import Settings
from atomic_celery.store import open_store
from tests.cli.conftest import CommandLine, project
from tests.support.daemons import free_port
from tests.support.programs import running
from tests.support.roles import Role
from tests.support.waiting import wait_until
from tests.support.workers import Fleet

SLOTS = 3
TALKATIVE = "tests.worker.talkative"


@pytest.fixture
def secret(role: Role, tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("s3cr3t")
    path.chmod(0o600)
    role.change_password("s3cr3t")
    return path


class Count:
    """How many sessions a role has had at most, while this was watching."""

    def __init__(self, role: Role) -> None:
        self.most, self._role = 0, role
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Count:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _watch(self) -> None:
        while not self._over.is_set():
            self.most = max(self.most, self._role.sessions())


@pytest.fixture
def sessions(role: Role) -> Iterator[Count]:
    with Count(role) as count:
        yield count


def test_a_host_stays_within_its_connections_idle_and_busy(
    role: Role, postgres_url: str, secret: Path, tmp_path: Path, sessions: Count
) -> None:
    with closing(Fleet(postgres_url, tmp_path, broker=role.url)) as fleet:
        worker = fleet.worker(slots=SLOTS, options=("--password-file", str(secret))).start()
        worker.wait_line("ready")
        for number in range(SLOTS):
            fleet.send("gate", f"gate-{number}", str(tmp_path))
        for number in range(SLOTS):
            fleet.begun(f"gate-{number}")
        for number in range(SLOTS):
            fleet.open_gate(f"gate-{number}")
        for number in range(100):
            fleet.send("note", str(number))
        fleet.wait_done(100 + SLOTS)
        fleet.app.control.inspect(timeout=1).ping()
    assert 1 < sessions.most <= connections.PER_HOST


# What its tasks use themselves comes on top.
@pytest.mark.parametrize(
    ("task", "each"),
    [("publish", 1), ("wait", 2), ("ask", 3)],
)
def test_a_slot_stays_within_its_connections(
    role: Role, postgres_url: str, secret: Path, tmp_path: Path, sessions: Count, task: str, each: int
) -> None:
    """Every slot has one of the tasks at a time, several times over; others answer them."""
    for name in ("asked", "answering"):
        (tmp_path / name).mkdir()
    at = f"atomic+{role.url}"
    with (
        closing(Fleet(postgres_url, tmp_path / "answering", results=True, application=TALKATIVE)) as others,
        closing(Fleet(postgres_url, tmp_path / "asked", broker=role.url, results=at, application=TALKATIVE)) as fleet,
    ):
        others.worker("answering", slots=2, options=("-Q", "answers")).start().wait_line("ready")
        fleet.worker("asked", slots=SLOTS, options=("--password-file", str(secret))).start().wait_line("ready")
        for number in range(3 * SLOTS):
            others.app.send_task(f"{TALKATIVE}.{task}", args=(number,))
        fleet.wait_until(lambda: not fleet.unfinished(), 90)
        assert sum(row.startswith(task) for row in fleet.ledger.rows()) == 3 * SLOTS
    assert each < sessions.most <= connections.PER_HOST + SLOTS * each


APPLICATION = """
from celery import Celery
app = Celery('app', broker={broker!r})
app.conf.beat_schedule = {{'often': {{'task': 'often', 'schedule': 0.2}}}}
"""


@pytest.fixture
def cli(role: Role, postgres_url: str, secret: Path, tmp_path: Path) -> CommandLine:
    with closing(open_store(postgres_url, Settings())) as store:
        store.schema.migrate()
    made = project(tmp_path, f"atomic+{role.url}")
    (tmp_path / "app.py").write_text(APPLICATION.format(broker=f"atomic+{role.url}"))
    return made


def run(cli: CommandLine, *words: str, **environ: str) -> AbstractContextManager[Callable[[], str]]:
    """Run a command of the project until it is no longer needed."""
    environment = {**cli.environment, **environ}
    said = cli.directory / "said"
    return running(cli.command(*words), directory=cli.directory, environment=environment, said=said)


def test_a_controller_stays_within_its_connections(cli: CommandLine, secret: Path, sessions: Count) -> None:
    instances = json.dumps([{"id": f"vm-{number}", "state": "failed"} for number in range(5)])
    for name, printed in (("up", ""), ("down", ""), ("list", instances)):
        (cli.directory / name).write_text(f"#!/bin/sh\necho '{printed}'\n")
        (cli.directory / name).chmod(0o755)
    commands = {name: [str(cli.directory / name)] for name in ("up", "down", "list")}
    (cli.directory / "fleet.json").write_text(json.dumps({"kind": "command", **commands}))
    words = ("atomic", "--password-file", str(secret), "controller", "--provisioner", "fleet.json")
    with run(cli, *words) as said:
        wait_until(lambda: said().count("removed ") >= 5, 60, said)
    assert 0 < sessions.most <= connections.PER_CONTROLLER


def test_a_metrics_server_stays_within_its_connections(cli: CommandLine, secret: Path, sessions: Count) -> None:
    port = free_port()
    words = ("atomic", "--password-file", str(secret), "metrics", "--listen", f"127.0.0.1:{port}")

    def scrape(path: str = "metrics") -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
            return bool(answer.status == 200)
        return False

    with run(cli, *words) as said:
        wait_until(scrape, 60, said)
        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(scrape, ["scaling", "metrics", "healthz"] * 10))
    assert sessions.most == connections.PER_METRICS


def test_a_beat_stays_within_its_connections(
    cli: CommandLine, secret: Path, postgres_url: str, sessions: Count
) -> None:
    with (
        closing(open_store(postgres_url, Settings())) as store,
        run(cli, "beat", "-S", "atomic", ATOMIC_PASSWORD_FILE=str(secret)) as said,
    ):
        wait_until(lambda: len(store.reads.messages()) >= 3, 60, said)
    assert 0 < sessions.most <= connections.PER_BEAT


@pytest.mark.parametrize(("slots", "now", "needed"), [([], 0, 107), ([4, 4], 16, 107), ([16] * 10, 200, 251)])
def test_the_budget_is_for_the_larger_of_what_is_and_what_may_come(slots: list[int], now: int, needed: int) -> None:
    budget = connections.budget(slots, max_hosts=10, workers_per_host=4)
    assert (budget.now, budget.needed) == (now, needed)
