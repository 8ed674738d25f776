"""Celery's other pools run on the transport too, with leases; only what they cannot do is missing."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.workers import RENEWED, Fleet

POOLS = ("prefork", "threads", "solo", "gevent")


@pytest.mark.parametrize("pool", POOLS)
def test_tasks_run_retry_and_settle(fleet_with_results: Fleet, pool: str) -> None:
    fleet = fleet_with_results
    worker = fleet.worker(pool=pool).start()
    worker.wait_line("ready")
    assert fleet.send("add", 1, 2).get(timeout=60) == 3
    assert fleet.send("retry", 2).get(timeout=60) == 2
    with pytest.raises(ValueError, match="on purpose"):
        fleet.send("fail").get(timeout=60)
    fleet.wait_until(lambda: not fleet.unfinished(), what="all is settled")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert fleet.store.hosts.list() == []


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_chain_that_ends_before_the_task_it_replaces_loses_no_part(fleet: Fleet, pool: str) -> None:
    fleet.worker(pool=pool, slots=2).start()
    fleet.send("chain_instead", "first", "last", str(fleet.directory))
    assert fleet.wait_done(2) == ["first", "last"]
    fleet.wait_until(lambda: len(fleet.running()) == 1, what="the task that was replaced is still running")
    fleet.open_gate("last")
    fleet.wait_until(lambda: not fleet.unfinished(), what="all is settled")
    assert fleet.ledger.rows() == ["first", "last"]


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_long_task_keeps_its_lease(fleet: Fleet, pool: str) -> None:
    worker = fleet.worker(pool=pool, env=RENEWED).start()
    fleet.send("gate", "g", str(fleet.directory))
    fleet.gate("g")
    [before] = fleet.store.reads.messages()
    assert before.lease_until_ms is not None
    fleet.wait_until(lambda: fleet.store.now_ms() > before.lease_until_ms + 500, what="the first lease would be over")
    [after] = fleet.store.reads.messages()
    assert (after.state, after.fence) == ("running", 1)
    fleet.open_gate("g")
    assert fleet.wait_done(1) == ["g"]
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert not worker.events("lost")


def test_prefork_kills_what_is_lost(fleet: Fleet) -> None:
    from tests.worker.test_losing import gone, take_away

    worker = fleet.worker(pool="prefork").start()
    fleet.send("gate", "g", str(fleet.directory))
    child = fleet.gate("g")
    take_away(fleet)
    worker.wait_line("lost")
    fleet.wait_until(lambda: gone(child), what="the child is dead")
    fleet.open_gate("g")
    assert fleet.wait_done(1) == ["g"]


@pytest.mark.parametrize("pool", POOLS)
def test_idle_exit_ends_a_host_that_has_nothing_to_do(fleet: Fleet, pool: str) -> None:
    fleet.send("note", "n")
    worker = fleet.worker(pool=pool, options=("--idle-exit", "10000")).start()
    worker.wait_line("draining", reason="idle")
    assert worker.wait() == 0
    assert fleet.ledger.rows() == ["n"]
    assert worker.events("released", outcome="succeeded")
    assert fleet.store.hosts.list() == []


@pytest.mark.parametrize("pool", POOLS)
def test_events_are_told_while_a_task_runs(fleet: Fleet, pool: str) -> None:
    worker = fleet.worker(pool=pool).start()
    child = fleet.send("gate", "g", str(fleet.directory))
    fleet.gate("g")
    if pool != "solo":  # there, nothing else happens while a task runs
        worker.wait_line("claimed", child=child.id)
    fleet.open_gate("g")
    worker.wait_line("released", child=child.id, outcome="succeeded")


@pytest.mark.parametrize("pool", POOLS)
def test_after_atomic_shutdown_timeout_the_worker_ends_whatever_still_runs(
    database_url: str, tmp_path: Path, pool: str
) -> None:
    with closing(
        Fleet(database_url, tmp_path, quick=False, settings={"ATOMIC_SHUTDOWN_TIMEOUT": "1"}, results=True)
    ) as fleet:
        worker = fleet.worker(pool=pool).start()
        result = fleet.send("gate", "g", str(fleet.directory))
        fleet.gate("g")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        worker.wait_line("stopped")
        assert fleet.store.hosts.list() == []
        [stopped] = fleet.store.reads.messages()
        # A thread cannot be stopped before its process: what it ran waits for its lease to run out.
        assert (stopped.state, stopped.crashes) == ("ready" if pool == "prefork" else "running", 0)
        assert result.state == "PENDING"
        assert fleet.ledger.rows() == []
