"""``celery worker -B``: the beat in a worker is ours, leaves in order, and does not outlive its worker."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from tests.beat.beats import QUICK, TERM
from tests.support.workers import LONG_TERM, Fleet, WorkerProcess

SCHEDULE = {"note": {"task": "tests.support.application.note", "schedule": 0.5, "args": ["run"]}}


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet whose application has a schedule."""
    with closing(Fleet(database_url, tmp_path, conf={"beat_schedule": SCHEDULE}, settings=QUICK)) as made:
        yield made


def leader(fleet: Fleet) -> int | None:
    """Return the process id of the beat that leads."""
    standing = fleet.store.terms.look(TERM)
    return None if standing is None or standing.free else int(standing.holder.split("/")[1])


def start(fleet: Fleet, name: str, *options: str, env: Mapping[str, str] | None = None) -> WorkerProcess:
    """Start a worker with a beat and wait until it is ready."""
    worker = fleet.worker(name, options=("-B", *options), env=env).start()
    worker.wait_line("ready")
    return worker


def test_the_beat_of_a_worker_runs_the_schedule_and_hands_over(fleet: Fleet) -> None:
    worker = start(fleet, "w", env=LONG_TERM)
    fleet.wait_done(2)
    assert leader(fleet) == worker.pid

    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert leader(fleet) is None


def test_the_beat_of_a_killed_worker_goes_and_that_of_another_takes_over(fleet: Fleet) -> None:
    first = start(fleet, "first")
    fleet.wait_done(1)
    second = start(fleet, "second")
    first.signal(signal.SIGKILL)
    first.wait()

    fleet.wait_until(lambda: leader(fleet) == second.pid, what="the second leads")
    fleet.wait_done(len(fleet.ledger.rows()) + 2)


def test_another_scheduler_that_was_asked_for_is_left_alone(fleet: Fleet) -> None:
    worker = start(fleet, "w", "--scheduler", "celery.beat:PersistentScheduler")
    fleet.wait_until(lambda: list(fleet.directory.glob("celerybeat-schedule*")))

    assert fleet.store.terms.look(TERM) is None
    worker.signal(signal.SIGTERM)  # its scheduler is a process that outlives a worker that is killed
    assert worker.wait() == 0


def test_a_worker_without_a_beat_runs_no_schedule(fleet: Fleet) -> None:
    fleet.worker("w").start().wait_line("ready")
    fleet.send("note", "sent")

    assert fleet.wait_done(1) == ["sent"]
    assert fleet.store.terms.look(TERM) is None
