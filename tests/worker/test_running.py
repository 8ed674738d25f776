"""Tasks run, on real workers."""

from __future__ import annotations

import signal

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
