"""A lease that is lost, a child that dies, a host that dies: what becomes of the task."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from celery.exceptions import WorkerLostError

from tests.support.workers import HASTY, Fleet


def gone(pid: int) -> bool:
    """Whether a process is dead, collected or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def take_away(fleet: Fleet) -> None:
    """Let another holder claim everything, as if every lease had run out."""
    ids = [view.id for view in fleet.store.reads.messages()]
    fleet.store.messages.requeue(ids)


def test_a_child_whose_lease_is_lost_dies_with_everything_it_started(fleet: Fleet) -> None:
    worker = fleet.worker(slots=2).start()
    result = fleet.send("family", str(fleet.directory))
    begun = fleet.directory / "family"
    fleet.wait_until(begun.exists, what="the task has begun")
    pids = [int(word) for word in begun.read_text().split()]
    take_away(fleet)
    worker.wait_line("lost", child=result.id, reason="superseded")
    fleet.wait_until(lambda: all(map(gone, pids)), what=f"{pids} are dead")
    assert "task_failure" not in worker.log
    assert not worker.events("released", child=result.id)


def test_a_lost_task_is_not_failed_and_runs_again(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    worker = fleet.worker().start()
    result = fleet.send("gate", "g", str(fleet.directory))
    pid = fleet.gate("g")
    take_away(fleet)
    worker.wait_line("lost", child=result.id)
    fleet.wait_until(lambda: gone(pid), what="the first attempt is dead")
    fleet.wait_until(lambda: list(fleet.directory.glob("g.begun.*"))[1:], what="the second attempt has begun")
    assert result.state == "PENDING"
    fleet.open_gate("g")
    assert result.get(timeout=60) == "g"
    assert fleet.ledger.rows() == ["g"]


@pytest.mark.parametrize("how", ["kill", "segv", "exit", "sys.exit"])
def test_a_child_that_dies_alone_is_replaced_and_its_task_runs_again_at_once(
    fleet_with_results: Fleet, how: str
) -> None:
    fleet = fleet_with_results
    worker = fleet.worker().start()
    result = fleet.send("die", 2, how)
    assert result.get(timeout=60) == 3
    worker.wait_line("released", child=result.id, outcome="crashed", count=2)
    worker.wait_line("released", child=result.id, outcome="succeeded")
    assert fleet.ledger.rows() == ["die 1", "die 2", "die 3"]


def test_a_task_that_kills_its_child_again_and_again_is_buried_and_failed(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    fleet.worker().start()
    result = fleet.send("die", 1000)
    fleet.wait_until(lambda: result.state == "FAILURE", 60, what="the result says that it failed")
    with pytest.raises(WorkerLostError):
        result.get(timeout=60)
    assert fleet.ledger.rows() == [f"die {fence}" for fence in range(1, 6)]
    [view] = fleet.store.reads.messages()
    assert (view.state, view.crashes) == ("dead", 5)
    crashes = fleet.store.reads.crashes(view.id)
    assert [crash.reason.partition(" Errand")[0] for crash in crashes] == [
        "Worker exited prematurely: signal 9 (SIGKILL)"
    ] * 5
    events = fleet.wait_until(
        lambda: [each for each in fleet.store.events.list() if each.kind == "message-dead"], what="the fleet event"
    )
    assert [(event.root, event.detail["task_id"]) for event in events] == [(result.id, result.id)]
    assert [event.host for event in events] == [host.id for host in fleet.store.hosts.list()]


@pytest.mark.parametrize(
    "faults",
    [
        "reclaim.committed=kill,crash.committed=kill",  # the one if the first host seems to live, the other if not
        "burial.committing=kill",
        "burial.committed=kill",
    ],
    ids=["buried", "all is written", "all is committed"],
)
def test_who_waits_is_told_though_the_host_that_buries_dies_over_it(
    database_url: str, tmp_path: Path, faults: str
) -> None:
    with closing(Fleet(database_url, tmp_path, results=True, settings={"ATOMIC_MAX_CRASHES": "1"})) as fleet:
        first = fleet.worker("first", env=HASTY).start()
        errback = fleet.app.signature("tests.support.application.note")
        gate = fleet.app.signature("tests.support.application.gate", args=("g", str(fleet.directory)))
        result = gate.set(link_error=[errback]).delay()
        fleet.gate("g")
        first.signal(signal.SIGKILL)
        assert fleet.worker("second", faults=faults).start().wait(60) == -signal.SIGKILL
        fleet.worker("third").start()
        with pytest.raises(WorkerLostError, match="1 times, the message is buried: its host died"):
            result.get(timeout=60)
        fleet.wait_until(lambda: [view.state for view in fleet.store.reads.messages()] == ["dead"])
        assert fleet.ledger.rows() == [result.id], "its error callback was called once"


def test_a_task_that_says_reject_on_worker_lost_false_fails_as_celery_documents(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    fleet.worker().start()
    result = fleet.send("die_once")
    with pytest.raises(WorkerLostError):
        result.get(timeout=60)
    assert fleet.ledger.rows() == ["die_once"]
    fleet.wait_until(lambda: not fleet.unfinished(), what="it is settled")


def test_an_error_callback_that_fails_in_the_host_keeps_no_task_from_ending(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    worker = fleet.worker().start()
    errback = fleet.app.signature("tests.support.application.fail_over_failure")
    result = fleet.app.signature("tests.support.application.die_once").set(link_error=[errback]).delay()
    with pytest.raises(WorkerLostError):
        result.get(timeout=60)
    fleet.wait_until(lambda: not fleet.unfinished(), what="it is settled")
    assert fleet.ledger.rows() == ["die_once"]
    assert "on purpose" in worker.log
    assert fleet.send("add", 1, 2).get(timeout=60) == 3


def test_a_task_out_of_memory_fails_and_its_worker_goes_on(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    fleet.worker().start()
    with pytest.raises(MemoryError, match="too much"):
        fleet.send("run_out_of_memory").get(timeout=60)
    assert fleet.send("add", 1, 2).get(timeout=60) == 3


def test_what_a_killed_host_held_runs_elsewhere_once_its_lease_is_over(fleet: Fleet) -> None:
    first = fleet.worker("first", env=HASTY).start()
    fleet.send("gate", "g", str(fleet.directory))
    child = fleet.gate("g")
    second = fleet.worker("second").start()
    second.wait_line("ready")
    first.signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    fleet.wait_until(lambda: gone(child), what="the child of the dead host is dead")
    fleet.gate("g", fence=2)
    fleet.open_gate("g")
    assert fleet.wait_done(1) == ["g"]
    fleet.wait_until(lambda: not fleet.unfinished(), what="it is settled")


def test_a_restarted_host_recovers_what_its_dead_predecessor_held_without_waiting(slow_fleet: Fleet) -> None:
    fleet = slow_fleet
    worker = fleet.worker().start()
    host = worker.wait_line("ready")["host"]
    fleet.send("gate", "g", str(fleet.directory))
    fleet.gate("g")
    worker.signal(signal.SIGKILL)
    worker.wait()
    worker.start()
    assert worker.wait_line("ready")["host"] == host
    fleet.gate("g", fence=2)
    fleet.open_gate("g")
    assert fleet.wait_done(1) == ["g"]


def test_a_frozen_host_cannot_finish_what_another_one_has_taken_over(fleet: Fleet) -> None:
    frozen = fleet.worker("frozen", env=HASTY).start()
    fleet.send("gate", "g", str(fleet.directory))
    child = fleet.gate("g")
    frozen.freeze()
    fleet.worker("awake").start()
    fleet.gate("g", fence=2)
    fleet.wait_until(lambda: gone(child), what="the frozen host's child has ended itself")
    frozen.signal(signal.SIGCONT)
    frozen.wait_line("lost")
    fleet.open_gate("g")
    assert fleet.wait_done(1) == ["g"]
    fleet.wait_until(lambda: not fleet.unfinished(), what="it is settled")
    frozen.signal(signal.SIGTERM)
    assert frozen.wait() == 0
    assert fleet.ledger.rows() == ["g"]


def test_a_task_terminated_by_revoke_is_revoked_and_settled(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    worker = fleet.worker().start()
    worker.wait_line("ready")
    result = fleet.send("gate", "g", str(fleet.directory))
    pid = fleet.gate("g")
    fleet.app.control.revoke(result.id, terminate=True, signal="KILL")
    fleet.wait_until(lambda: gone(pid), what="the child is dead")
    fleet.wait_until(lambda: result.state == "REVOKED", what="the result says so")
    fleet.wait_until(lambda: not fleet.unfinished(), what="it is settled")
    assert os.path.exists(fleet.directory / "w.log")


@pytest.mark.parametrize("first", [[], [signal.SIGSTOP]], ids=["running", "stopped"])
def test_a_host_that_is_killed_takes_everything_with_it(fleet: Fleet, first: list[signal.Signals]) -> None:
    worker = fleet.worker(slots=2).start()
    fleet.send("family", str(fleet.directory))
    begun = fleet.directory / "family"
    fleet.wait_until(begun.exists, what="the task has begun")
    pids = [int(word) for word in begun.read_text().split()]
    children = [process.pid for process in psutil.Process(worker.pid).children()]
    for signum in first:
        os.kill(pids[0], signum)
    worker.signal(signal.SIGKILL)
    fleet.wait_until(lambda: all(map(gone, [*pids, *children])), what=f"{pids} and {children} are dead")


def test_children_end_with_their_host_even_when_its_undertaker_is_dead(fleet: Fleet) -> None:
    worker = fleet.worker(slots=1).start()
    fleet.send("family", str(fleet.directory))
    begun = fleet.directory / "family"
    fleet.wait_until(begun.exists, what="the task has begun")
    pids = [int(word) for word in begun.read_text().split()]
    [undertaker] = {process.pid for process in psutil.Process(worker.pid).children()} - {pids[0]}
    os.kill(undertaker, signal.SIGKILL)
    worker.signal(signal.SIGKILL)
    fleet.wait_until(lambda: all(map(gone, pids)), what=f"{pids} are dead")
