"""Passwords change under a live fleet, and what a worker starts gets a reference to the secret, never the secret."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import psutil
import pytest

from atomic_celery.fleet.controller import TERM
from tests.admin_site.running import PROJECT, Site
from tests.fleet.test_serving import get
from tests.support.daemons import free_port
from tests.support.programs import running
from tests.support.roles import Role
from tests.support.waiting import wait_until
from tests.support.workers import ROOT, Fleet, WorkerProcess

FIRST, SECOND = "first-s3cr3t", "second-s3cr3t"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"{FIRST}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def fleet(postgres_url: str, role: Role, tmp_path: Path) -> Iterator[Fleet]:
    role.change_password(FIRST)
    with closing(Fleet(postgres_url, tmp_path, broker=role.url)) as made:
        yield made


def start(fleet: Fleet, option: str, secret_file: Path) -> WorkerProcess:
    worker = fleet.worker(options=(option, str(secret_file))).start()
    worker.wait_line("ready")
    return worker


@pytest.mark.parametrize("option", ["--password-file", "--token-file"])
def test_a_password_is_rotated_under_a_live_fleet_without_a_restart(
    fleet: Fleet, role: Role, secret_file: Path, option: str
) -> None:
    worker = start(fleet, option, secret_file)
    fleet.send("note", "before")
    fleet.wait_done(1)

    secret_file.write_text(f"{SECOND}\n")
    role.change_password(SECOND)
    fleet.send("note", "after")

    assert fleet.wait_done(2) == ["before", "after"]
    assert worker.events("stopped") == []


def test_a_password_that_is_refused_degrades_a_worker_until_the_file_is_right(
    fleet: Fleet, role: Role, secret_file: Path
) -> None:
    worker = start(fleet, "--token-file", secret_file)
    role.change_password(SECOND)
    fleet.send("note", "meanwhile")
    worker.wait_degraded("password authentication failed")

    secret_file.unlink()
    worker.wait_degraded("cannot be read: No such file")

    secret_file.write_text(SECOND)
    worker.wait_line("recovered")
    fleet.wait_done(1)
    assert FIRST not in worker.log
    assert SECOND not in worker.log


def test_the_processes_of_a_worker_get_a_reference_and_not_the_secret(
    fleet: Fleet, secret_file: Path, tmp_path: Path
) -> None:
    worker = start(fleet, "--token-file", secret_file)
    fleet.send("gate", "open", str(tmp_path))
    child = fleet.gate("open")

    processes = {
        psutil.Process(worker.pid),
        psutil.Process(child),
        *psutil.Process(worker.pid).children(recursive=True),
    }
    for process in processes:
        given = "\n".join([*process.cmdline(), *map("=".join, process.environ().items())])
        assert FIRST not in given
        assert str(secret_file) in given
    fleet.open_gate("open")
    fleet.wait_done(1)


APPLICATION = """
from celery import Celery
app = Celery('app', broker={broker!r})
app.conf.beat_schedule = {{'often': {{'task': 'often', 'schedule': 0.2}}}}
"""
PROGRAMS = {
    "controller": ("atomic", "controller", "--provisioner", "tests.fleet.folder_cloud"),
    "metrics": ("atomic", "metrics", "--listen", "127.0.0.1:{port}"),
    "beat": ("beat", "-S", "atomic"),
    "fleet_controller": ("--provisioner", "tests.fleet.folder_cloud"),
    "fleet_metrics": ("--listen", "127.0.0.1:{port}"),
}


class Signs:
    """What a program that is not a worker does again and again on the database."""

    def __init__(self, program: str, fleet: Fleet, port: int) -> None:
        self._program, self._fleet, self._port = program, fleet, port

    def seen(self) -> int:
        """Return a number that grows as long as it works."""
        if "metrics" in self._program:
            return self._reads()
        if self._program == "beat":
            return self._fleet.store.queues.size("celery")
        return max([term.renewed_ms for term in self._fleet.store.terms.list() if term.name == TERM], default=0)

    def _reads(self) -> int:
        try:
            _, text = get(f"127.0.0.1:{self._port}", "/metrics")
        except OSError:
            return 0
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        reads, failed = (float(lines.get(f"atomic_instance_{name}_total", 0)) for name in ("reads", "read_failures"))
        return int(reads - failed) if lines.get("atomic_fleet_store_up") == "1.0" else 0

    def wait_more(self, said: Callable[[], str]) -> None:
        """Wait until it has worked once more, and then again."""
        for _ in range(2):
            before = self.seen()
            wait_until(partial(self._more_than, before), 60, said)

    def _more_than(self, before: int) -> bool:
        return self.seen() > before


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_password_is_rotated_under_every_other_program_without_a_restart(
    fleet: Fleet, role: Role, secret_file: Path, tmp_path: Path, program: str
) -> None:
    port = free_port()
    words = [word.format(port=port) for word in PROGRAMS[program]]
    (tmp_path / "app.py").write_text(APPLICATION.format(broker=fleet.broker))
    given = {"ATOMIC_TOKEN_FILE": str(secret_file), "ATOMIC_TERM": "3", "ATOMIC_TEST_CLOUD": str(tmp_path)}
    if program.startswith("fleet_"):
        site = Site({"SITE_DATABASE": f"sqlite:///{tmp_path}/site.db", "SITE_BROKER": fleet.broker, **given})
        command, directory, environment = [sys.executable, "manage.py", program, *words], PROJECT, site.env
    else:
        command, directory = [sys.executable, "-m", "celery", "-A", "app", *words], tmp_path
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **given}
    signs = Signs(program, fleet, port)
    with running(command, directory=directory, environment=environment, said=tmp_path / "said") as said:
        signs.wait_more(said)
        secret_file.write_text(f"{SECOND}\n")
        role.change_password(SECOND)
        signs.wait_more(said)
    assert FIRST not in said()
    assert SECOND not in said()


def test_a_file_that_others_can_read_is_used_and_warned_about(fleet: Fleet, secret_file: Path) -> None:
    secret_file.chmod(0o644)
    worker = start(fleet, "--token-file", secret_file)
    assert f"other users can read the token-file {secret_file}: chmod 600 {secret_file}" in worker.log


def test_a_worker_without_its_password_does_not_start_and_says_all_that_is_missing(
    fleet: Fleet, tmp_path: Path
) -> None:
    worker = fleet.worker(options=("--token-file", str(tmp_path / "gone"))).start()
    assert worker.wait() == 1
    assert "Worker host setup is incomplete" in worker.log
    assert f"the token-file {tmp_path}/gone cannot be read: No such file or directory" in worker.log


def test_two_credentials_are_refused_at_the_start(fleet: Fleet, secret_file: Path) -> None:
    options = ("--password-file", str(secret_file), "--token-file", str(secret_file))
    worker = fleet.worker(options=options).start()
    assert worker.wait() == 1
    assert "password_file and token_file are set; a database takes exactly one credential" in worker.log
