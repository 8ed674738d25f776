"""Periodic tasks under limits: beat enqueues through them as anybody does, and stands still for none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import atomic_celery
from atomic_celery.store.reads import Filter
from tests.beat.beats import QUICK, Beats
from tests.limits.conftest import APPLICATION, declare
from tests.limits.test_workers import most_at_once
from tests.support.workers import Fleet

EVERY_S = 0.5

Start = Callable[[dict[str, Any]], Fleet]


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Start]:
    """Start a beat with a schedule, by the names of tasks."""
    with beating(database_url, tmp_path) as begin:
        yield begin


@contextmanager
def beating(url: str, directory: Path) -> Iterator[Start]:
    opened: list[Any] = []

    def begin(schedule: dict[str, Any]) -> Fleet:
        entries = {
            name: {"task": f"{APPLICATION}.{name}", "schedule": EVERY_S, "args": args}
            for name, args in schedule.items()
        }
        settings = {**QUICK, "ATOMIC_BEAT_MISSED": "all"}
        fleet = Fleet(
            url, directory, results=True, application=APPLICATION, conf={"beat_schedule": entries}, settings=settings
        )
        declare(fleet.app)
        beats = Beats(fleet)
        opened[:] = [closing(fleet), closing(beats)]
        beats.start("beat", application=APPLICATION)
        return fleet

    try:
        yield begin
    finally:
        for each in reversed(opened):
            with each:
                pass


def runs(fleet: Fleet, name: str) -> int:
    """Return how many runs of an entry are noted."""
    known = fleet.store.schedules.load("application").get(name)
    return known.total_runs if known is not None else 0


def begun(fleet: Fleet) -> list[str]:
    return [row.split()[2] for row in fleet.ledger.rows() if row.startswith("begin")]


def test_a_unique_task_is_enqueued_again_only_when_its_last_run_is_over(start: Start, tmp_path: Path) -> None:
    fleet = start({"once": ["k", str(tmp_path / "go")]})
    fleet.worker(slots=2).start()
    fleet.wait_done(1)
    before = runs(fleet, "once")

    fleet.wait_until(lambda: runs(fleet, "once") >= before + 3)
    assert fleet.unfinished() == 1
    assert len(begun(fleet)) == 1

    fleet.open_gate("go")
    fleet.wait_done(3)
    assert len(set(begun(fleet))) == len(begun(fleet))


def test_limited_runs_wait_at_their_gate(start: Start, tmp_path: Path) -> None:
    fleet = start({"two_that_wait": [0, str(tmp_path / "go")]})
    fleet.worker(slots=4).start()

    fleet.wait_until(lambda: runs(fleet, "two_that_wait") >= 5)
    fleet.wait_until(lambda: sum(view.state == "limited" for view in fleet.store.reads.messages()) >= 3)
    fleet.wait_until(lambda: len(fleet.running()) == 2)

    fleet.open_gate("go")
    assert most_at_once(fleet.wait_done(12)) <= 2


def test_a_key_in_an_open_transaction_keeps_no_other_entry_waiting(postgres_url: str, tmp_path: Path) -> None:
    with beating(postgres_url, tmp_path) as start:
        fleet = start({"once": ["k", str(tmp_path / "go")], "one_a_tenant": ["t", 0, 0.0]})
        fleet.wait_until(lambda: runs(fleet, "once") >= 1)
        engine = sqlalchemy.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg2:"))
        first = fleet.store.reads.messages(Filter(task=f"{APPLICATION}.once"))
        fleet.store.messages.delete([view.id for view in first])
        with Session(engine) as session:
            with atomic_celery.publishing_in(session):
                mine = fleet.app.tasks[f"{APPLICATION}.once"].delay("k", "nowhere")
            before = runs(fleet, "one_a_tenant")
            fleet.wait_until(lambda: runs(fleet, "one_a_tenant") >= before + 6)
            session.commit()
        engine.dispose()

        before = runs(fleet, "once")
        fleet.wait_until(lambda: runs(fleet, "once") >= before + 2)
        unique = fleet.store.reads.messages(Filter(task=f"{APPLICATION}.once"))
        assert [view.task_id for view in unique] == [mine.id]
