"""Consumers are woken by the commit of what they wait for, not before; and not at all if it is rolled back."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg2
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import atomic_celery
from atomic_celery import errors
from atomic_celery.store.doorbell import Doorbell
from atomic_celery.store.messages import Messages
from atomic_celery.store.queues import QueueSpec
from tests.publishing.conftest import Office, open_office
from tests.support.waiting import wait_until

WHILE_S = 0.2  # how long to listen for what must not come
LONG_S = 60.0


@pytest.fixture
def office(postgres_url: str) -> Iterator[Office]:
    """An app on PostgreSQL, where consumers are told."""
    yield from open_office(postgres_url)


@pytest.fixture
def engine(office: Office, postgres_url: str) -> Iterator[sqlalchemy.Engine]:
    """The application's engine."""
    engine = sqlalchemy.create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg2://"))
    yield engine
    engine.dispose()


@pytest.fixture
def bell(office: Office) -> Iterator[Doorbell]:
    """The doorbell of a consumer that sleeps over the queue."""
    queue = office.store.queues.declare(QueueSpec(name="celery"))
    bell = office.store.doorbell("sleeper")
    wait_until(lambda: bell.wait(0.1) and bell.listening)
    office.store.queues.arm("sleeper", [queue.id], 60_000)
    while bell.wait(0.0):
        pass
    yield bell
    bell.close()


def test_a_session_wakes_after_its_commit(office: Office, engine: sqlalchemy.Engine, bell: Doorbell) -> None:
    with Session(engine) as session:
        with atomic_celery.publishing_in(session):
            for number in range(3):
                office.task("add").delay(number)
        assert not bell.wait(WHILE_S)
        session.commit()
        assert bell.wait(LONG_S)


def test_a_savepoint_that_ends_is_no_commit(office: Office, engine: sqlalchemy.Engine, bell: Doorbell) -> None:
    with Session(engine) as session:
        with atomic_celery.publishing_in(session), session.begin_nested():
            office.task("add").delay(1)
        assert not bell.wait(WHILE_S)
        session.commit()
        assert bell.wait(LONG_S)


def test_a_rollback_wakes_nobody_and_keeps_nobody_asleep(
    office: Office, engine: sqlalchemy.Engine, bell: Doorbell
) -> None:
    with Session(engine) as session:
        with atomic_celery.publishing_in(session):
            office.task("add").delay(1)
        office.task("add").delay(2)  # somebody else's message is not held up by that transaction
        assert bell.wait(LONG_S)
        session.rollback()
        session.commit()
        assert not bell.wait(WHILE_S)


def test_a_driver_s_own_commit_wakes(office: Office, postgres_url: str, bell: Doorbell) -> None:
    connection = psycopg2.connect(postgres_url)
    with atomic_celery.publishing_in(connection):
        office.task("add").delay(1)
    assert not bell.wait(WHILE_S)
    connection.commit()
    assert bell.wait(LONG_S)
    connection.close()


def test_a_wake_that_fails_is_no_error_of_the_commit(
    office: Office,
    engine: sqlalchemy.Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Session(engine) as session:
        with atomic_celery.publishing_in(session):
            result = office.task("add").delay(1)
        monkeypatch.setattr(Messages, "_wake", _unreachable)
        session.commit()
    assert office.task_ids() == [result.id]
    assert "cannot wake a consumer after a commit" in caplog.text


def _unreachable(*_: object) -> None:
    raise errors.StoreUnavailable("no connection just now")
