"""Tasks run and are settled, on real workers."""

from __future__ import annotations

import signal

import pytest

from atomic_celery import clock
from atomic_celery.store.traffic import band_of
from tests.support.workers import Fleet


def test_a_worker_runs_tasks_and_drains_on_sigterm(fleet: Fleet) -> None:
    worker = fleet.worker(slots=2).start()
    ready = worker.wait_line("ready")
    assert ready["slots"] == "2"
    for number in range(20):
        fleet.send("note", f"n{number}")
    rows = fleet.wait_done(20)
    assert sorted(rows) == sorted(f"n{number}" for number in range(20))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    worker.wait_line("drained")
    assert fleet.unfinished() == 0
    assert fleet.store.hosts.list() == []


def test_every_child_is_claimed_and_released_with_its_outcome(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    worker = fleet.worker().start()
    worker.wait_line("ready")
    sent = {
        "succeeded": fleet.send("add", 1, 2),
        "failed": fleet.send("fail"),
    }
    for outcome, result in sent.items():
        worker.wait_line("claimed", child=result.id)
        worker.wait_line("released", child=result.id, outcome=outcome)
    assert sent["succeeded"].get(timeout=60) == 3
    with pytest.raises(ValueError, match="on purpose"):
        sent["failed"].get(timeout=60)
    fleet.wait_until(lambda: not fleet.unfinished(), what="everything settled")


def test_a_retry_takes_the_place_of_what_it_retries(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    worker = fleet.worker().start()
    result = fleet.send("retry", 2)
    assert result.get(timeout=60) == 2
    worker.wait_line("released", child=result.id, outcome="retried", count=2)
    worker.wait_line("released", child=result.id, outcome="succeeded")
    assert fleet.ledger.rows() == ["retry 0", "retry 1", "retry 2"]
    fleet.wait_until(lambda: not fleet.unfinished(), what="everything settled")


def test_a_task_that_says_acks_late_false_is_settled_before_it_starts(fleet: Fleet) -> None:
    worker = fleet.worker().start()
    result = fleet.send("early_gate", "early", str(fleet.directory))
    fleet.wait_until((fleet.directory / "early.begun").exists, what="the task has begun")
    assert fleet.unfinished() == 0
    worker.wait_line("claimed", child=result.id)
    fleet.open_gate("early")
    assert fleet.wait_done(1) == ["early"]


def test_any_other_task_is_settled_when_it_has_ended(fleet: Fleet) -> None:
    worker = fleet.worker().start()
    result = fleet.send("gate", "late", str(fleet.directory))
    fleet.gate("late")
    assert fleet.unfinished() == 1
    fleet.open_gate("late")
    worker.wait_line("released", child=result.id, outcome="succeeded")
    fleet.wait_until(lambda: not fleet.unfinished(), what="it is settled")


@pytest.mark.parametrize("pool", ["atomic", "prefork"])
def test_what_ended_is_counted_with_the_hosts_reports(fleet: Fleet, pool: str) -> None:
    worker = fleet.worker(pool=pool).start()
    worker.wait_line("ready")
    for number in range(3):
        fleet.send("note", f"n{number}")
    fleet.send("fail")
    fleet.send("early_gate", "early", str(fleet.directory))
    fleet.open_gate("early")

    def counts() -> dict[str, int]:
        found: dict[str, int] = {}
        for bucket in fleet.store.traffic.read(0, 60):
            found[bucket.kind] = found.get(bucket.kind, 0) + bucket.count
        return found

    began = {"waited": 5}
    fleet.wait_until(lambda: counts() == {"succeeded": 4, "failed": 1, **began}, what="everything is counted")
    fleet.send("note", "the last")
    fleet.wait_done(5)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert counts() == {"succeeded": 5, "failed": 1, "waited": 6}


def test_how_long_a_task_has_waited_counts_from_when_it_could_begin(fleet: Fleet) -> None:
    """What waits behind another task in a worker that has claimed it still waits."""
    worker = fleet.worker(slots=1).start()
    worker.wait_line("ready")
    fleet.send("gate", "first", str(fleet.directory))
    fleet.gate("first")
    for number in range(3):
        fleet.send("note", f"n{number}")
    sent_s = clock.monotonic_s()
    fleet.wait_until(lambda: clock.monotonic_s() > sent_s + 1.0, what="a second has passed")
    fleet.open_gate("first")
    fleet.wait_done(4)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    waited = [bucket for bucket in fleet.store.traffic.read(0, 60) if bucket.kind == "waited"]
    assert sum(bucket.count for bucket in waited) == 4
    assert sum(bucket.count for bucket in waited if bucket.band >= band_of(1000)) >= 3  # the first may have, too


@pytest.mark.parametrize(("how", "code"), [("return", 0), ("sys.exit", 7), ("raise", 1)])
def test_a_process_that_a_task_forks_is_no_second_child(fleet_with_results: Fleet, how: str, code: int) -> None:
    fleet = fleet_with_results
    worker = fleet.worker().start()
    assert fleet.send("come_back_twice", how).get(timeout=60) == code
    for number in range(50):
        fleet.send("note", str(number))
    assert sorted(fleet.wait_done(50), key=int) == [str(number) for number in range(50)]
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert fleet.unfinished() == 0
    assert "came back from the task's body" in worker.log
