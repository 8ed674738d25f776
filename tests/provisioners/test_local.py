"""Workers on this machine: real ones, started and ended, and known again by the next controller."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from atomic_celery import identity
from atomic_celery.errors import CallGivenUp, ConfigError, ProvisionerError
from atomic_celery.fleet.provisioner import Permit
from atomic_celery.provisioners import LocalProvisioner, local
from atomic_celery.provisioners.configuration import LocalWorkers
from tests.provisioners.conftest import ids, states
from tests.support.clocks import ManualClock
from tests.support.waiting import wait_until
from tests.support.workers import APPLICATION, ROOT, Fleet


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "local"
    yield path
    for process in psutil.Process().children(recursive=True):  # what a failed test left
        with contextlib.suppress(psutil.Error):
            if APPLICATION in process.cmdline():
                process.kill()


@pytest.fixture
def fleet(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """A fleet whose workers the environment of this process leads to."""
    with closing(Fleet(database_url, tmp_path)) as made:
        for name, value in {**made.env, "PYTHONPATH": str(ROOT), "C_FORCE_ROOT": "1"}.items():
            monkeypatch.setenv(name, value)
        yield made


def workers(directory: Path, app: str = APPLICATION, options: tuple[str, ...] = ()) -> LocalWorkers:
    return LocalWorkers(app=app, directory=str(directory), slots=1, options=("-l", "INFO", *options))


def registered(fleet: Fleet) -> set[str | None]:
    return {host.provider_id for host in fleet.store.hosts.list()}


def test_workers_start_run_tasks_and_end(fleet: Fleet, directory: Path, permit: Permit) -> None:
    made = LocalProvisioner(workers(directory))
    assert ids(made.list(permit)) == []

    made.scale_to(2, permit, add=2)
    made.scale_to(2, permit, add=2)
    started = ids(made.list(permit))
    assert len(started) == 2
    assert states(made.list(permit)) == {"running"}
    fleet.wait_until(lambda: registered(fleet) == set(started))
    fleet.send("note", "ran")
    fleet.wait_done(1)

    after_a_restart = LocalProvisioner(workers(directory))
    assert ids(after_a_restart.list(permit)) == started
    assert states(after_a_restart.list(permit)) == {"running"}

    after_a_restart.drain(started[0], permit)
    made.drain(started[1], permit)
    assert states(made.list(permit)) <= {"draining"}
    fleet.wait_until(lambda: ids(made.list(permit)) == [])
    assert registered(fleet) == set()
    assert list(directory.glob("*.json")) == []


def test_a_worker_that_ended_by_itself_is_forgotten(fleet: Fleet, directory: Path, permit: Permit) -> None:
    made = LocalProvisioner(workers(directory, options=("--idle-exit", "1")))
    made.scale_to(1, permit, add=1)
    fleet.wait_until(lambda: ids(made.list(permit)) == [])
    made.scale_to(1, permit, add=1)
    assert len(made.list(permit)) == 1


def test_a_worker_that_cannot_start_has_failed_until_it_is_removed(
    directory: Path, permit: Permit, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = LocalProvisioner(workers(directory, app="no.such.module"))
    made.scale_to(1, permit, add=1)
    wait_until(lambda: states(made.list(permit)) == {"failed"}, describe=lambda: logs(directory))
    [failed] = ids(made.list(permit))
    assert "no.such.module" in logs(directory)
    made.drain(failed, permit)
    assert ids(made.list(permit)) == []


def logs(directory: Path) -> str:
    return "\n".join(path.read_text() for path in directory.glob("*.log"))


def test_logs_of_workers_that_ended_are_kept_of_the_last_ones_only(
    directory: Path, permit: Permit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_LOGS_KEPT", 2)
    made = LocalProvisioner(workers(directory))
    note(directory, "local-0", os.getpid(), identity.start_of(os.getpid()) or "")
    for number in range(5):
        for suffix in (".log", ".log.1"):
            path = directory / f"local-{number}{suffix}"
            path.write_text("said")
            os.utime(path, (number, number))
    made.list(permit)
    left = {path.name for path in directory.glob("*.log*")}
    assert left == {f"local-{number}{suffix}" for number in (0, 3, 4) for suffix in (".log", ".log.1")}


def test_a_log_that_grows_long_is_cut_short_under_a_worker_that_goes_on(
    directory: Path, permit: Permit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_LOG_BYTES", 10)
    made = LocalProvisioner(workers(directory))
    note(directory, "local-0", os.getpid(), identity.start_of(os.getpid()) or "")
    log = directory / "local-0.log"
    with log.open("a") as said:
        print("more than ten", file=said, flush=True)
        made.list(permit)
        print("on", file=said, flush=True)
        made.list(permit)
    assert log.read_text() == "on\n"
    assert (directory / "local-0.log.1").read_text() == "more than ten\n"


@pytest.fixture
def stubborn(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a note of it, that does not mind SIGTERM, and a child that does not either."""
    directory.mkdir()
    script = "trap '' TERM; (trap '' TERM; sleep 1000) & wait; wait"
    process = subprocess.Popen(["sh", "-c", script], start_new_session=True)
    wait_until(lambda: psutil.Process(process.pid).children(recursive=True))
    note(directory, "local-1", process.pid, identity.start_of(process.pid) or "")
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def note(directory: Path, name: str, pid: int, started: str) -> None:
    text = json.dumps(
        {"id": name, "pid": pid, "pid_started": started, "since_ms": 1_700_000_000_000, "removed_ms": None}
    )
    (directory / f"{name}.json").write_text(text)


def test_a_worker_that_does_not_end_is_killed_after_a_while(
    stubborn: subprocess.Popen[bytes], directory: Path, permit: Permit
) -> None:
    clock = ManualClock()
    made = LocalProvisioner(workers(directory), clock)
    family = [psutil.Process(stubborn.pid), *psutil.Process(stubborn.pid).children(recursive=True)]
    made.drain("local-1", permit)
    clock.advance(29)
    assert states(made.list(permit)) == {"draining"}
    assert stubborn.poll() is None
    clock.advance(2)
    made.list(permit)
    stubborn.wait(10)
    assert ids(made.list(permit)) == []
    psutil.wait_procs(family, 10)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)


def test_another_process_with_the_same_number_is_left_alone(
    stubborn: subprocess.Popen[bytes], directory: Path, permit: Permit
) -> None:
    note(directory, "local-1", stubborn.pid, "another start")
    made = LocalProvisioner(workers(directory))
    made.drain("local-1", permit)
    assert ids(made.list(permit)) == []
    assert stubborn.poll() is None


def test_nothing_is_done_without_the_right_to(stubborn: subprocess.Popen[bytes], directory: Path) -> None:
    made, permit = LocalProvisioner(workers(directory)), Permit(lambda: False, threading.Event())
    for act in (
        lambda: made.list(permit),
        lambda: made.scale_to(2, permit, add=1),
        lambda: made.drain("local-1", permit),
    ):
        with pytest.raises(CallGivenUp):
            act()
    assert len(list(directory.glob("*.json"))) == 1
    assert json.loads((directory / "local-1.json").read_text())["removed_ms"] is None


def test_a_note_that_makes_no_sense_is_named(directory: Path, permit: Permit) -> None:
    directory.mkdir()
    (directory / "local-1.json").write_text("{")
    with pytest.raises(ProvisionerError, match=r"cannot make sense of .*local-1\.json") as refused:
        LocalProvisioner(workers(directory)).list(permit)
    assert refused.value.code == "malformed"


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot use the directory .*/file/local: Not a directory"):
        LocalProvisioner(workers(tmp_path / "file" / "local"))
