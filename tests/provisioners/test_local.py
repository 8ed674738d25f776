"""Workers on this machine: real ones, started and ended, and known again by the next controller."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from atomic_celery import identity
from atomic_celery.clock import Clock
from atomic_celery.errors import CallGivenUp, ConfigError, ProvisionerError
from atomic_celery.fleet.provisioner import Permit
from atomic_celery.provisioners import LocalProvisioner, local
from atomic_celery.provisioners.configuration import LocalWorkers
from tests.provisioners.conftest import JOURNAL, ids, states
from tests.support.clocks import ManualClock
from tests.support.waiting import wait_until
from tests.support.workers import APPLICATION, ROOT, Fleet


def named(journal: str) -> str:
    """Return what the directory of a fleet is called."""
    return hashlib.sha256(journal.encode()).hexdigest()[:16]


FLEET = named(JOURNAL)
"""Its directory in the one that is given."""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "local" / FLEET
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
    return LocalWorkers(app=app, directory=str(directory.parent), slots=1, options=("-l", "INFO", *options))


def provisioner(configured: LocalWorkers, clock: Clock | None = None) -> LocalProvisioner:
    return LocalProvisioner(configured, JOURNAL, clock)


def registered(fleet: Fleet) -> set[str | None]:
    return {host.provider_id for host in fleet.store.hosts.list()}


def test_workers_start_run_tasks_and_end(fleet: Fleet, directory: Path, permit: Permit) -> None:
    made = provisioner(workers(directory))
    assert ids(made.list(permit)) == []

    made.scale_to(2, permit, add=2)
    made.scale_to(2, permit, add=2)
    started = ids(made.list(permit))
    assert len(started) == 2
    assert states(made.list(permit)) == {"running"}
    fleet.wait_until(lambda: registered(fleet) == set(started))
    fleet.send("note", "ran")
    fleet.wait_done(1)

    after_a_restart = provisioner(workers(directory))
    assert ids(after_a_restart.list(permit)) == started
    assert states(after_a_restart.list(permit)) == {"running"}

    after_a_restart.drain(started[0], permit)
    made.drain(started[1], permit)
    assert states(made.list(permit)) <= {"draining"}
    fleet.wait_until(lambda: ids(made.list(permit)) == [])
    assert registered(fleet) == set()
    assert list(directory.glob("*.json")) == []


def test_a_worker_that_ended_by_itself_is_forgotten(fleet: Fleet, directory: Path, permit: Permit) -> None:
    made = provisioner(workers(directory, options=("--idle-exit", "1")))
    made.scale_to(1, permit, add=1)
    fleet.wait_until(lambda: ids(made.list(permit)) == [])
    staying = provisioner(workers(directory))
    staying.scale_to(1, permit, add=1)
    assert len(staying.list(permit)) == 1


def test_a_worker_that_cannot_start_has_failed_until_it_is_removed(
    directory: Path, permit: Permit, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = provisioner(workers(directory, app="no.such.module"))
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
    made = provisioner(workers(directory))
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
    made = provisioner(workers(directory))
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
    directory.mkdir(parents=True)
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
    made = provisioner(workers(directory), clock)
    family = [psutil.Process(stubborn.pid), *psutil.Process(stubborn.pid).children(recursive=True)]
    made.drain("local-1", permit)
    clock.advance(29)
    assert states(made.list(permit)) == {"draining"}
    assert stubborn.poll() is None
    clock.advance(2)
    made.list(permit)
    stubborn.wait(60)
    assert ids(made.list(permit)) == []
    psutil.wait_procs(family, 60)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)


def test_another_process_with_the_same_number_is_left_alone(
    stubborn: subprocess.Popen[bytes], directory: Path, permit: Permit
) -> None:
    note(directory, "local-1", stubborn.pid, "another start")
    made = provisioner(workers(directory))
    made.drain("local-1", permit)
    assert ids(made.list(permit)) == []
    assert stubborn.poll() is None


def test_nothing_is_done_without_the_right_to(stubborn: subprocess.Popen[bytes], directory: Path) -> None:
    made, permit = provisioner(workers(directory)), Permit(lambda: False, threading.Event())
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
    directory.mkdir(parents=True)
    (directory / "local-1.json").write_text("{")
    with pytest.raises(ProvisionerError, match=r"cannot make sense of .*local-1\.json") as refused:
        provisioner(workers(directory)).list(permit)
    assert refused.value.code == "malformed"


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot use the directory .*/file/\w+: Not a directory"):
        provisioner(workers(tmp_path / "file" / FLEET))


@pytest.mark.parametrize("given", [True, False], ids=["one directory", "the default"])
def test_two_fleets_do_not_see_each_other(
    given: bool,
    stubborn: subprocess.Popen[bytes],
    directory: Path,
    permit: Permit,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """One of them has a busy worker, and a directory in which the other one's controller looks."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    configured = workers(directory, app="no.such.module")
    if not given:
        configured = replace(configured, directory=None)
        moved = tmp_path / "state" / "atomic_celery" / "local-workers"
        moved.parent.mkdir(parents=True)
        directory.parent.rename(moved)
    clock = ManualClock()
    mine, other = (LocalProvisioner(configured, journal, clock) for journal in (JOURNAL, f"{JOURNAL}2"))
    assert ids(mine.list(permit)) == ["local-1"]
    assert ids(other.list(permit)) == []
    other.drain("local-1", permit)
    clock.advance(60)
    other.scale_to(1, permit, add=1)
    [started] = ids(other.list(permit))
    assert ids(mine.list(permit)) == ["local-1"]
    mine.drain(started, permit)
    assert states(mine.list(permit)) == {"running"}
    assert states(other.list(permit)) <= {"running", "failed"}
    assert stubborn.poll() is None
    wait_until(lambda: states(other.list(permit)) == {"failed"})


def test_a_fleet_s_busy_worker_outlives_the_controller_of_another_prefix(
    fleet: Fleet, directory: Path, permit: Permit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two real controllers of one file, one database and one directory; the second fleet has nothing to do."""
    configured = directory.parent.parent / "local.json"
    said = {"kind": "local", "app": APPLICATION, "slots": 1, "directory": str(directory.parent)}
    configured.write_text(json.dumps(said))
    mine = LocalProvisioner(workers(directory), fleet.store.journal)
    mine.scale_to(1, permit, add=1)
    [worker] = ids(mine.list(permit))
    fleet.wait_until(lambda: registered(fleet) == {worker})
    fleet.send("gate", "held", str(fleet.directory))
    fleet.wait_until(lambda: fleet.store.loads.work(None, 10).running == 1)

    atomic = (sys.executable, "-m", "celery", "-A", APPLICATION, "atomic", "--prefix", "third")
    once = ("controller", "--provisioner", str(configured), "--once", "--boot-timeout", "1")
    for command in (("migrate",), once):
        subprocess.run((*atomic, *command), check=True, timeout=120, cwd=fleet.directory)
    theirs = fleet.store.journal.removesuffix("atomic") + "third"
    assert {path.name for path in directory.parent.iterdir()} == {named(fleet.store.journal), named(theirs)}
    assert [(each.id, each.state) for each in mine.list(permit)] == [(worker, "running")]
    assert fleet.store.loads.work(None, 10).running == 1
