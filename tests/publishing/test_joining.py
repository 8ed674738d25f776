"""P7: what is published in the application's transaction exists if and only if that transaction commits."""

from __future__ import annotations

import contextvars
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import psycopg.rows
import psycopg2
import psycopg2.extras
import pytest
import sqlalchemy
from celery import chain, group
from sqlalchemy import text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import atomic_celery
from atomic_celery import errors
from tests.publishing.conftest import Office, open_office


@pytest.fixture(params=["sqlite", "psycopg2", "psycopg"])
def engine(request: pytest.FixtureRequest) -> Iterator[sqlalchemy.Engine]:
    """The application's engine, to the database that is the broker; of each driver in turn."""
    fixture = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    url = str(request.getfixturevalue(fixture))
    engine = sqlalchemy.create_engine(url.replace("postgresql://", f"postgresql+{request.param}://"))
    yield engine
    engine.dispose()


@pytest.fixture
def joined(engine: sqlalchemy.Engine) -> Iterator[Office]:
    """The app that publishes there, and a table of the application's own."""
    url = engine.url.set(drivername=engine.url.drivername.partition("+")[0])
    yield from open_office(url.render_as_string(hide_password=False))


@pytest.fixture
def orders(joined: Office, engine: sqlalchemy.Engine) -> None:
    """Make the table."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id integer)"))


def test_a_session_that_commits_has_published(joined: Office, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session:
        with atomic_celery.publishing_in(session):
            result = joined.task("add").delay(1)
        assert joined.task_ids() == []
        session.commit()

    assert joined.task_ids() == [result.id]


def test_a_session_that_rolls_back_has_not(joined: Office, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session, atomic_celery.publishing_in(session):
        joined.task("add").delay(1)
        session.rollback()
        session.commit()

    assert joined.task_ids() == []


def test_a_session_may_go_through_several_transactions(joined: Office, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session, atomic_celery.publishing_in(session):
        first = joined.task("add").delay(1)
        session.commit()
        joined.task("add").delay(2)
        session.rollback()
        third = joined.task("add").delay(3)
        session.commit()

    assert joined.task_ids() == [first.id, third.id]


def test_a_savepoint_takes_its_messages_along(joined: Office, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session, atomic_celery.publishing_in(session):
        session.execute(text("CREATE TABLE IF NOT EXISTS anything (id integer)"))
        first = joined.task("add").delay(1)
        with session.begin_nested() as savepoint:
            joined.task("add").delay(2)
            savepoint.rollback()
        with session.begin_nested():
            third = joined.task("add").delay(3)
        session.commit()

    assert joined.task_ids() == [first.id, third.id]


def test_a_bulk_around_a_transaction_is_no_way_out_of_it(joined: Office, engine: sqlalchemy.Engine) -> None:
    with atomic_celery.bulk(joined.app):
        before = joined.task("add").delay(1)
        with Session(engine) as session, atomic_celery.publishing_in(session):
            joined.task("add").delay(2)
            session.rollback()

    assert joined.task_ids() == [before.id]


def test_a_bulk_within_a_transaction_belongs_to_it(joined: Office, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session, atomic_celery.publishing_in(session):
        with atomic_celery.bulk(joined.app):
            first = joined.task("add").delay(1)
            with session.begin_nested() as savepoint:
                joined.task("add").delay(2)
                savepoint.rollback()
        atomic_celery.publish_many((joined.task("add").s(number) for number in range(1500)), app=joined.app)
        assert joined.task_ids() == []
        session.commit()

    assert len(joined.task_ids()) == 1501
    assert joined.task_ids()[0] == first.id


def test_canvases_join_too(joined: Office, engine: sqlalchemy.Engine) -> None:
    add = joined.task("add")
    with Session(engine) as session:
        with atomic_celery.publishing_in(session):
            group(add.s(1), add.s(2)).apply_async()
            chain(add.s(3), add.s(4)).apply_async()
        assert joined.task_ids() == []
        session.commit()

    assert len(joined.task_ids()) == 3


def test_delayed_messages_join_too(joined: Office, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session:
        with atomic_celery.publishing_in(session):
            joined.task("add").apply_async((1,), countdown=3600)
        session.commit()

    assert [view.state for view in joined.views()] == ["delayed"]


def test_a_core_connection_is_joined_as_well(joined: Office, engine: sqlalchemy.Engine) -> None:
    with engine.connect() as connection, atomic_celery.publishing_in(connection):
        joined.task("add").delay(1)
        connection.rollback()
        kept = joined.task("add").delay(2)
        connection.commit()
    with engine.begin() as connection, atomic_celery.publishing_in(connection):
        also_kept = joined.task("add").delay(3)

    assert joined.task_ids() == [kept.id, also_kept.id]


def test_a_scoped_session_stands_for_the_thread_s(joined: Office, engine: sqlalchemy.Engine) -> None:
    registry = scoped_session(sessionmaker(engine))
    with atomic_celery.publishing_in(registry):
        joined.task("add").delay(1)
    registry.rollback()
    registry.remove()

    assert joined.task_ids() == []


def test_a_queue_first_used_in_a_transaction_that_rolls_back_is_declared_again(
    joined: Office, engine: sqlalchemy.Engine
) -> None:
    with Session(engine) as session, atomic_celery.publishing_in(session):
        joined.task("add").apply_async((1,), queue="fresh")
        session.rollback()
    inside = None
    with Session(engine) as session, atomic_celery.publishing_in(session):
        inside = joined.task("add").apply_async((2,), queue="fresh")
        session.commit()
    outside = joined.task("add").apply_async((3,), queue="fresh")

    assert joined.task_ids() == [inside.id, outside.id]


def test_it_is_one_transaction_with_the_application_s_rows(
    joined: Office, engine: sqlalchemy.Engine, orders: None
) -> None:
    for keep in (True, False):
        with Session(engine) as session:
            session.execute(text("INSERT INTO orders VALUES (1)"))
            with atomic_celery.publishing_in(session):
                joined.task("add").delay(1)
            session.execute(text("INSERT INTO orders VALUES (2)"))
            session.commit() if keep else session.rollback()

    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar() == 2
    assert len(joined.task_ids()) == 1


def test_an_error_is_the_driver_s_own(joined: Office, engine: sqlalchemy.Engine, orders: None) -> None:
    with Session(engine) as session, atomic_celery.publishing_in(session):
        with pytest.raises(sqlalchemy.exc.DBAPIError):
            session.execute(text("SELECT * FROM nowhere"))
        if engine.dialect.name == "postgresql":
            with pytest.raises(sqlalchemy.exc.DBAPIError, match="current transaction is aborted"):
                joined.task("add").delay(1)
            session.rollback()
        kept = joined.task("add").delay(2)
        session.commit()

    assert joined.task_ids() == [kept.id]


def test_other_threads_are_not_joined(joined: Office, engine: sqlalchemy.Engine) -> None:
    joined.task("add").delay(0)
    with Session(engine) as session, atomic_celery.publishing_in(session):
        _in_a_thread(lambda: joined.task("add").delay(1))
        session.rollback()

    assert len(joined.task_ids()) == 2


def test_a_context_that_outlives_the_block_is_not_joined_any_more(joined: Office, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session:
        with atomic_celery.publishing_in(session):
            context = contextvars.copy_context()
        session.rollback()
        late = context.run(joined.task("add").delay, 1)
        session.rollback()

    assert joined.task_ids() == [late.id]


def test_a_task_id_that_is_unfinished_is_published_once(joined: Office, engine: sqlalchemy.Engine) -> None:
    for _ in range(2):
        with Session(engine) as session, session.begin(), atomic_celery.publishing_in(session):
            joined.task("add").apply_async((1,), task_id="order-1")

    assert joined.task_ids() == ["order-1"]


@pytest.mark.parametrize("connect", [psycopg2.connect, psycopg.connect])
@pytest.mark.parametrize("autocommit", [False, True])
def test_a_plain_postgresql_connection(postgres_url: str, connect: Callable[..., Any], autocommit: bool) -> None:
    for office in open_office(postgres_url):
        connection = connect(postgres_url)
        connection.autocommit = autocommit
        with atomic_celery.publishing_in(connection):
            lost = office.task("add").delay(1)
            assert bool(office.task_ids()) is autocommit
            if not autocommit:
                connection.rollback()
            kept = office.task("add").delay(2)
            if not autocommit:
                connection.commit()
        connection.close()

        assert office.task_ids() == ([lost.id] if autocommit else []) + [kept.id]


def test_a_connection_that_makes_dictionaries_of_rows(postgres_url: str) -> None:
    for office in open_office(postgres_url):
        factories: list[Any] = [
            psycopg2.connect(postgres_url, cursor_factory=psycopg2.extras.RealDictCursor),
            psycopg.connect(postgres_url, row_factory=psycopg.rows.dict_row),
        ]
        for connection in factories:
            with atomic_celery.publishing_in(connection):
                office.task("add").delay(1)
            connection.commit()
            connection.close()

        assert len(office.task_ids()) == 2


SQLITE_MODES = [{}, {"isolation_level": "IMMEDIATE"}, {"isolation_level": None}]


@pytest.mark.parametrize("mode", SQLITE_MODES, ids=str)
def test_a_plain_sqlite_connection(sqlite_url: str, mode: dict[str, Any]) -> None:
    for office in open_office(sqlite_url):
        connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), **mode)
        connection.row_factory = sqlite3.Row
        with atomic_celery.publishing_in(connection):
            if mode.get("isolation_level", "") is None:
                connection.execute("BEGIN")
            office.task("add").delay(1)
            atomic_celery.publish_many([office.task("add").s(1), office.task("add").s(2)], app=office.app)
            assert connection.in_transaction
            connection.rollback()
            kept = office.task("add").delay(2)
            connection.commit()
        connection.close()

        assert office.task_ids() == [kept.id]


def test_what_cannot_be_joined_is_refused(office: Office) -> None:
    with pytest.raises(errors.ConfigError, match=r"not builtins\.str"), atomic_celery.publishing_in("postgresql://"):
        pass


def test_a_connection_to_another_kind_of_database_is_refused(postgres_url: str, sqlite_url: str) -> None:
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    for office in open_office(postgres_url):
        with (
            atomic_celery.publishing_in(connection),
            pytest.raises(errors.ConfigError, match="sqlite connection, but the broker is atomic"),
        ):
            office.task("add").delay(1)
    connection.close()


def _in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


DIES = """
import os, signal, sys
import sqlalchemy
from sqlalchemy.orm import Session
import atomic_celery
from tests.publishing.tasks import make_app

url, engine_url, dies = sys.argv[1:]
with make_app(url) as app, Session(sqlalchemy.create_engine(engine_url)) as session:
    with atomic_celery.publishing_in(session):
        app.tasks["add"].apply_async((1,), task_id=dies)
    if dies == "after the commit":
        session.connection().connection.driver_connection.commit()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("dies", ["before the commit", "after the commit"])
def test_a_process_that_is_killed_leaves_both_or_none(joined: Office, engine: sqlalchemy.Engine, dies: str) -> None:
    urls = [str(joined.app.conf.broker_url), engine.url.render_as_string(hide_password=False)]

    killed = subprocess.run([sys.executable, "-c", DIES, *urls, dies], timeout=120, check=False)

    assert killed.returncode == -signal.SIGKILL
    assert joined.task_ids() == (["after the commit"] if dies == "after the commit" else [])
