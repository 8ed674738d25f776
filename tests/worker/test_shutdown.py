"""How a worker ends: drained, cut off, or at once."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.stray_signals import signal_another_thread
from tests.support.workers import RENEWED, Fleet
from tests.worker.test_losing import gone


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_tasks_finish_and_gives_back_what_has_not_begun(
    slow_fleet: Fleet, signum: signal.Signals
) -> None:
    fleet = slow_fleet
    first = fleet.worker("first").start()
    first.wait_line("ready")
    for name in ("a", "b"):
        fleet.send("gate", name, str(fleet.directory))
    fleet.gate("a")
    first.signal(signum)
    first.wait_line("draining", reason=signum.name, running=1)
    second = fleet.worker("second").start()
    second.wait_line("claimed")
    fleet.wait_until(lambda: list(fleet.directory.glob("b.begun.*")), what="b has begun on the other host")
    fleet.wait_until(
        lambda: [host.name for host in fleet.store.hosts.list() if host.draining_ms] == ["first@test"],
        what="the list of hosts says that the first drains",
    )
    fleet.open_gate("a")
    assert first.wait() == 0
    first.wait_line("drained")
    assert [host.name for host in fleet.store.hosts.list()] == ["second@test"]
    fleet.open_gate("b")
    assert sorted(fleet.wait_done(2)) == ["a", "b"]


def test_a_worker_drains_whichever_of_its_threads_the_signal_finds(fleet: Fleet) -> None:
    worker = fleet.worker().start()
    worker.wait_line("ready")
    signal_another_thread(worker.pid, signal.SIGTERM)
    assert worker.wait() == 0
    worker.wait_line("drained")


def test_leases_are_renewed_during_a_drain(fleet: Fleet) -> None:
    worker = fleet.worker(env=RENEWED).start()
    fleet.send("gate", "g", str(fleet.directory))
    fleet.gate("g")
    worker.signal(signal.SIGTERM)
    worker.wait_line("draining")
    [before] = fleet.store.reads.messages()
    assert before.lease_until_ms is not None
    fleet.wait_until(lambda: fleet.store.now_ms() > before.lease_until_ms + 500, what="the lease would have been over")
    [after] = fleet.store.reads.messages()
    assert (after.state, after.fence) == ("running", before.fence)
    fleet.open_gate("g")
    assert worker.wait() == 0
    assert fleet.ledger.rows() == ["g"]


def test_the_second_signal_stops_at_once_and_makes_everything_ready(slow_fleet: Fleet) -> None:
    fleet = slow_fleet
    worker = fleet.worker(slots=2).start()
    fleet.send("gate", "a", str(fleet.directory))
    fleet.send("family", str(fleet.directory))
    child = fleet.begun("a")
    fleet.wait_until((fleet.directory / "family").exists, what="the family has begun")
    pids = [child, *(int(word) for word in (fleet.directory / "family").read_text().split())]
    worker.signal(signal.SIGTERM)
    worker.wait_line("draining")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 2
    worker.wait_line("stopped", released=2)
    fleet.wait_until(lambda: all(map(gone, pids)), what=f"{pids} are dead")
    views = fleet.store.reads.messages()
    assert [(view.state, view.crashes) for view in views] == [("ready", 0), ("ready", 0)]
    assert fleet.store.hosts.list() == []


def test_after_atomic_shutdown_timeout_what_runs_is_stopped_and_released(database_url: str, tmp_path: Path) -> None:
    with closing(
        Fleet(database_url, tmp_path, quick=False, settings={"ATOMIC_SHUTDOWN_TIMEOUT": "0.5"}, results=True)
    ) as fleet:
        worker = fleet.worker().start()
        result = fleet.send("gate", "g", str(fleet.directory))
        child = fleet.gate("g")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert gone(child)
        worker.wait_line("released", child=result.id, outcome="released")
        [view] = fleet.store.reads.messages()
        assert (view.state, view.crashes, view.fence) == ("ready", 0, 1)
        assert result.state == "PENDING"


def test_idle_exit_drains_once_no_task_has_run_for_so_long(fleet: Fleet) -> None:
    fleet.send("note", "n")
    worker = fleet.worker(options=("--idle-exit", "10000")).start()
    worker.wait_line("draining", reason="idle")
    assert worker.wait() == 0
    assert fleet.ledger.rows() == ["n"]


def test_idle_exit_does_not_end_a_host_that_runs_a_task(fleet: Fleet) -> None:
    fleet.send("gate", "g", str(fleet.directory))
    worker = fleet.worker(options=("--idle-exit", "5000")).start()
    fleet.gate("g")
    [host] = fleet.store.hosts.list()
    reported = host.reported_ms
    fleet.wait_until(lambda: fleet.store.hosts.list()[0].reported_ms > reported + 7000, what="it was long enough idle")
    assert not worker.events("draining")
    fleet.open_gate("g")
    assert worker.wait() == 0


def test_a_drain_row_stops_claims_before_the_host_knows_and_then_ends_it(slow_fleet: Fleet) -> None:
    fleet = slow_fleet
    worker = fleet.worker().start()
    host = worker.wait_line("ready")["host"]
    fleet.store.hosts.drain(host, "test", "tester")
    fleet.send("note", "n")
    worker.wait_line("draining", reason="asked")
    assert worker.wait() == 0
    assert fleet.ledger.rows() == []
    [view] = fleet.store.reads.messages()
    assert (view.state, view.fence) == ("ready", 0)


def test_a_drained_instance_takes_nothing_after_a_restart(slow_fleet: Fleet) -> None:
    fleet = slow_fleet
    fleet.store.hosts.drain("vm-1", "test", "tester")
    fleet.send("note", "n")
    worker = fleet.worker(options=("--provider-id", "vm-1")).start()
    assert worker.wait() == 0
    assert fleet.ledger.rows() == []
    worker.wait_line("drained")


def test_remote_shutdown_drains(fleet: Fleet) -> None:
    worker = fleet.worker().start()
    worker.wait_line("ready")
    fleet.send("gate", "g", str(fleet.directory))
    fleet.gate("g")
    fleet.app.control.shutdown()
    worker.wait_line("draining", reason="remote")
    fleet.open_gate("g")
    assert worker.wait() == 0
    assert fleet.ledger.rows() == ["g"]


def test_sigquit_is_celerys_cold_shutdown_and_releases_what_ran(slow_fleet: Fleet) -> None:
    fleet = slow_fleet
    worker = fleet.worker().start()
    fleet.send("gate", "g", str(fleet.directory))
    child = fleet.gate("g")
    worker.signal(signal.SIGQUIT)
    assert worker.wait() == 0
    assert gone(child)
    [view] = fleet.store.reads.messages()
    assert (view.state, view.crashes) == ("ready", 0)


def test_a_cold_shutdown_stops_what_began_without_the_host_having_heard_of_it(
    database_url: str, tmp_path: Path
) -> None:
    with closing(Fleet(database_url, tmp_path, quick=False, application="tests.worker.deaf")) as fleet:
        fleet.app.send_task("tests.support.application.gate", args=("g", str(tmp_path)))
        worker = fleet.worker(env={"TEST_BEGUN": str(tmp_path / "g.begun.1")}).start()
        assert worker.wait() == 0
        assert gone(int((tmp_path / "g.begun.1").read_text()))
        [view] = fleet.store.reads.messages()
        assert (view.state, view.crashes) == ("ready", 0)
