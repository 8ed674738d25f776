"""Every way to start a worker leads to the same host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from celery.contrib.testing.worker import start_worker
from celery.worker import state

from tests.support.workers import APPLICATION, ROOT, Fleet
from tests.worker.test_losing import gone


def test_a_pid_file_is_written_and_removed(fleet: Fleet) -> None:
    pid_file = fleet.directory / "worker.pid"
    worker = fleet.worker(options=("--pidfile", str(pid_file))).start()
    worker.wait_line("ready")
    assert int(pid_file.read_text()) == worker.pid
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert not pid_file.exists()


def test_the_second_signal_removes_the_pid_file_too(fleet: Fleet) -> None:
    pid_file = fleet.directory / "worker.pid"
    worker = fleet.worker(options=("--pidfile", str(pid_file))).start()
    fleet.send("gate", "g", str(fleet.directory))
    fleet.gate("g")
    worker.signal(signal.SIGTERM)
    worker.wait_line("draining")
    worker.signal(signal.SIGINT)
    assert worker.wait() == 2
    assert not pid_file.exists()


def test_a_detached_worker_and_celery_multi(fleet: Fleet) -> None:
    def multi(*arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "celery", "multi", *arguments, f"--pidfile={fleet.directory}/%n.pid"],
            check=True,
            cwd=fleet.directory,
            env={**os.environ, **fleet.env, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            timeout=110,
        )

    options = ("-A", APPLICATION, "-P", "atomic", "-c", "1", f"--logfile={fleet.directory}/%n.multi.log")
    multi("start", "m1", *options)
    try:
        fleet.send("note", "by multi")
        assert fleet.wait_done(1) == ["by multi"]
        [host] = fleet.store.hosts.list()
        assert (fleet.directory / "m1.pid").read_text().strip() == str(host.pid)
    finally:
        multi("stopwait", "m1", *options)
    fleet.wait_until(lambda: gone(host.pid), what="the worker has ended")
    assert fleet.store.hosts.list() == []


def test_a_pool_that_scales_itself_grows_with_the_work(fleet: Fleet) -> None:
    worker = fleet.worker(options=("--autoscale", "3,1")).start()
    worker.wait_line("ready")
    for name in "abc":
        fleet.send("gate", name, str(fleet.directory))
    # One may have been given back once, while the child that was to run it was not up yet.
    fleet.wait_until(lambda: len(list(fleet.directory.glob("?.begun.[0-9]*"))) == 3, what="they run side by side")
    fleet.wait_until(lambda: fleet.store.hosts.list()[0].slots == 3, what="the host reports its slots")
    for name in "abc":
        fleet.open_gate(name)
    assert sorted(fleet.wait_done(3)) == ["a", "b", "c"]
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_worker_main_of_an_app(fleet: Fleet) -> None:
    program = (
        f"from {APPLICATION} import app\n"
        "app.worker_main(['worker', '-P', 'atomic', '-c', '1', '--idle-exit', '10000', '-l', 'WARNING'])"
    )
    fleet.send("note", "by worker_main")
    run = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        cwd=fleet.directory,
        env={**os.environ, **fleet.env, "PYTHONPATH": str(ROOT)},
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stderr
    assert "drained" in run.stdout
    assert fleet.ledger.rows() == ["by worker_main"]


def test_worker_pool_can_be_a_setting(database_url: str, tmp_path: Path) -> None:
    fleet = Fleet(database_url, tmp_path, conf={"worker_pool": "atomic"})
    try:
        worker = fleet.worker(pool="prefork").start()  # prefork is what the command line has by default
        worker.wait_line("ready")
        assert "(prefork)" in "\n".join(worker.lines)
        child = fleet.send("gate", "g", str(fleet.directory))
        fleet.gate("g")
        worker.wait_line("claimed", child=child.id)
        stats = fleet.app.control.inspect(timeout=60, destination=["w@test"]).stats()["w@test"]
        assert stats["pool"]["implementation"] == "atomic_celery.concurrency.prefork:TaskPool"
        fleet.open_gate("g")
    finally:
        fleet.close()


def test_workers_embedded_in_a_test_run_one_after_the_other(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fleet.settings.items():
        monkeypatch.setenv(name, value)

    @fleet.app.task(name="embedded", shared=False)
    def embedded(x: int) -> int:
        return x + 1

    fleet.app.set_current()
    for _ in range(2):
        with start_worker(fleet.app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
            result = embedded.delay(1)
            fleet.wait_until(lambda: not fleet.unfinished(), what="it is settled")
            assert result.id
        assert state.should_stop is None, "the next worker of this process would end at once"
    assert fleet.store.hosts.list() == []


def test_an_embedded_worker_that_drained_does_not_end_the_next_one(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fleet.settings.items():
        monkeypatch.setenv(name, value)
    fleet.app.set_current()
    with start_worker(fleet.app, pool="solo", perform_ping_check=False, shutdown_timeout=30) as worker:
        host = worker.atomic
        host.call_soon(host.shutdown.drain, "test")
        fleet.wait_until(lambda: not fleet.store.hosts.list(), what="the worker has left")
    assert state.should_stop is None
