"""What is sent in a transaction of the application's counts against limits and keys if that commits, and never else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import atomic_celery
from tests.limits.conftest import APPLICATION
from tests.limits.test_workers import most_at_once
from tests.support.workers import Fleet


@pytest.fixture
def engine(fleet: Fleet) -> Iterator[sqlalchemy.Engine]:
    """The application's engine, to the database that is the broker."""
    engine = sqlalchemy.create_engine(fleet.url.removeprefix("atomic+").replace("postgresql:", "postgresql+psycopg2:"))
    yield engine
    engine.dispose()


def task(fleet: Fleet, name: str) -> Any:
    return fleet.app.tasks[f"{APPLICATION}.{name}"]


def states(fleet: Fleet) -> dict[str | None, str]:
    return {view.task_id: view.state for view in fleet.store.reads.messages()}


def test_a_key_is_free_again_when_its_call_is_rolled_back(fleet: Fleet, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session:
        with atomic_celery.publishing_in(session):
            gone = task(fleet, "once").delay("k", "nowhere")
        session.rollback()

    kept = task(fleet, "once").delay("k", "nowhere")

    assert kept.id != gone.id
    assert list(states(fleet)) == [kept.id]


def test_a_key_is_taken_by_a_call_that_commits(fleet: Fleet, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session:
        with atomic_celery.publishing_in(session):
            first, second = (task(fleet, "once").delay("k", "nowhere") for _ in range(2))
            other = task(fleet, "once").delay("another", "nowhere")
        session.commit()

    assert first.id == second.id == task(fleet, "once").delay("k", "nowhere").id
    assert set(states(fleet)) == {first.id, other.id}


def test_a_savepoint_that_rolls_back_takes_its_key_along(fleet: Fleet, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session, atomic_celery.publishing_in(session):
        with session.begin_nested() as savepoint:
            gone = task(fleet, "once").delay("k", "nowhere")
            savepoint.rollback()
        kept = task(fleet, "once").delay("k", "nowhere")
        session.commit()

    assert kept.id != gone.id
    assert list(states(fleet)) == [kept.id]


@pytest.mark.parametrize("commits", [True, False])
def test_a_second_publisher_of_a_key_waits_for_the_first_ones_transaction(postgres_fleet: Fleet, commits: bool) -> None:
    fleet, results = postgres_fleet, []
    once, driver = task(fleet, "once"), fleet.url.removeprefix("atomic+")
    second = threading.Thread(target=lambda: results.append(once.delay("k", "nowhere")))
    engine = sqlalchemy.create_engine(driver.replace("postgresql:", "postgresql+psycopg2:"))
    with Session(engine) as session:
        with atomic_celery.publishing_in(session):
            first = once.delay("k", "nowhere")
        second.start()
        fleet.wait_until(lambda: _waits_for_somebody(engine))
        assert results == []
        if commits:
            session.commit()
        else:
            session.rollback()
    second.join(60)
    engine.dispose()

    [result] = results
    assert (result.id == first.id) is commits
    assert list(states(fleet)) == [result.id]


def test_a_host_whose_task_ends_with_such_a_call_settles_all_others(postgres_fleet: Fleet) -> None:
    fleet = postgres_fleet
    worker = fleet.worker(slots=2).start()
    worker.wait_line("ready")
    once, add = task(fleet, "once"), fleet.app.signature("tests.support.application.add", args=(1, 1))
    engine = sqlalchemy.create_engine(fleet.url.removeprefix("atomic+").replace("postgresql:", "postgresql+psycopg2:"))
    with Session(engine) as session:
        with atomic_celery.publishing_in(session):
            first = once.delay("k", str(fleet.directory / "go"))
        held_up = add.clone().set(link=[once.si("k", "nowhere")]).delay()
        fleet.wait_until(lambda: _waits_for_somebody(engine))
        others = [add.clone().delay() for _ in range(20)]
        assert [other.get(timeout=60) for other in others] == [2] * 20
        assert not held_up.ready()
        session.commit()
    engine.dispose()

    assert held_up.get(timeout=60) == 2
    fleet.open_gate("go")
    assert first.get(timeout=60) == "k"
    fleet.wait_until(lambda: fleet.unfinished() == 0)
    assert [row for row in fleet.ledger.rows() if row.startswith("begin")] == [f"begin k {first.id}"]
    assert not worker.events("degraded")


def test_a_limit_first_heard_of_in_a_transaction_that_is_rolled_back_holds_afterwards(
    fleet: Fleet, engine: sqlalchemy.Engine
) -> None:
    with Session(engine) as session:
        with atomic_celery.publishing_in(session):
            task(fleet, "two_at_once").delay(99)
        session.rollback()
        with atomic_celery.publishing_in(session):
            for number in range(3):
                task(fleet, "two_at_once").delay(number)
        session.commit()
    for number in range(3, 6):
        task(fleet, "two_at_once").delay(number)
    assert set(states(fleet).values()) == {"limited"}

    fleet.worker(slots=4).start()
    rows = fleet.wait_done(12)

    assert most_at_once(rows) == 2
    assert {row.split()[1] for row in rows} == set("012345")


def test_what_is_rolled_back_takes_nobodys_place_and_uses_up_no_rate(fleet: Fleet, engine: sqlalchemy.Engine) -> None:
    fleet.worker(slots=4).start().wait_line("ready")
    with Session(engine) as session:
        with atomic_celery.publishing_in(session):
            for number in range(5):
                task(fleet, "two_at_once").delay(100 + number)
                task(fleet, "five_a_second").delay(100 + number)
        session.rollback()
    with engine.connect() as connection:
        for table in ("atomic_gated", "atomic_admitted", "atomic_start"):
            assert connection.execute(sqlalchemy.text(f"SELECT count(*) FROM {table}")).scalar() == 0
    for number in range(5):
        task(fleet, "five_a_second").delay(number)
    task(fleet, "two_that_wait").delay(0, str(fleet.directory / "go"))
    fleet.open_gate("go")

    rows = fleet.wait_done(7)
    assert [row.split()[0] for row in rows].count("claimed") == 5


def _waits_for_somebody(engine: sqlalchemy.Engine) -> bool:
    with engine.connect() as connection:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return bool(connection.execute(sqlalchemy.text(waiting)).scalar())
