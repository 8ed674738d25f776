"""Passwords change under a live fleet, and what a worker starts gets a reference to the secret, never the secret."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.support.roles import Role
from tests.support.workers import Fleet, WorkerProcess

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


def wait_degraded(worker: WorkerProcess, why: str) -> None:
    worker.fleet.wait_until(lambda: any(why in said["error"] for said in worker.events("degraded")), what=why)


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
    wait_degraded(worker, "password authentication failed")

    secret_file.unlink()
    wait_degraded(worker, "cannot be read: No such file")

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


def test_two_credentials_are_refused_at_the_start(fleet: Fleet, secret_file: Path) -> None:
    options = ("--password-file", str(secret_file), "--token-file", str(secret_file))
    worker = fleet.worker(options=options).start()
    assert worker.wait() == 1
    assert "password_file and token_file are set; a database takes exactly one credential" in worker.log
