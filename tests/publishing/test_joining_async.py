"""Asynchronous sessions and connections: the block is `async with`, and what it sent is stored as it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

import atomic_celery
from atomic_celery import errors
from atomic_celery.store.queues import QueueSpec
from tests.publishing.conftest import Office, open_office

Story = Callable[[AsyncEngine], Awaitable[None]]
Tell = Callable[[Story], None]


@pytest.fixture(params=["sqlite+aiosqlite", "postgresql+psycopg", "postgresql+asyncpg"])
def async_url(request: pytest.FixtureRequest) -> str:
    """The database, for each driver in turn."""
    dialect = str(request.param).partition("+")[0]
    url = str(request.getfixturevalue("sqlite_url" if dialect == "sqlite" else "postgres_url"))
    return url.replace(f"{dialect}://", f"{request.param}://")


@pytest.fixture
def office(async_url: str) -> Iterator[Office]:
    """The app that publishes there; its queue exists, as where a worker runs."""
    driver = async_url.partition("://")[0]
    for office in open_office(async_url.replace(driver, driver.partition("+")[0])):
        office.store.queues.declare(QueueSpec(name="celery"))
        yield office


@pytest.fixture
def tell(async_url: str) -> Tell:
    """Run a story on an event loop of its own."""

    async def with_engine(story: Story) -> None:
        engine = create_async_engine(async_url)
        try:
            await story(engine)
        finally:
            await engine.dispose()

    return lambda story: asyncio.run(with_engine(story))


def test_a_session_that_commits_has_published(office: Office, tell: Tell) -> None:
    async def story(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            async with atomic_celery.publishing_in(session):
                office.task("add").delay(1)
                office.task("add").apply_async((2,), countdown=3600)
            assert office.task_ids() == []
            await session.commit()

    tell(story)

    assert len(office.task_ids()) == 2


def test_a_session_that_rolls_back_has_not(office: Office, tell: Tell) -> None:
    async def story(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            async with atomic_celery.publishing_in(session):
                office.task("add").delay(1)
            await session.rollback()
            await session.commit()

    tell(story)

    assert office.task_ids() == []


def test_a_block_that_raises_stores_nothing(office: Office, tell: Tell) -> None:
    async def story(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            with pytest.raises(ZeroDivisionError):
                await _send_and_fail(office, session)
            await session.commit()

    tell(story)

    assert office.task_ids() == []


def test_a_savepoint_of_its_own(office: Office, tell: Tell) -> None:
    async def story(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            await session.execute(text("CREATE TABLE IF NOT EXISTS orders (id integer)"))
            async with session.begin_nested() as savepoint:
                async with atomic_celery.publishing_in(session):
                    office.task("add").delay(1)
                await savepoint.rollback()
            async with session.begin_nested(), atomic_celery.publishing_in(session):
                office.task("add").apply_async((2,), task_id="kept")
            await session.commit()

    tell(story)

    assert office.task_ids() == ["kept"]


def test_a_savepoint_within_the_block_is_refused(office: Office, tell: Tell) -> None:
    async def story(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, atomic_celery.publishing_in(session), session.begin_nested():
            with pytest.raises(errors.AtomicError, match=r"inside of each that sends tasks"):
                office.task("add").delay(1)

    tell(story)


def test_a_connection_is_joined_as_well(office: Office, tell: Tell) -> None:
    async def story(engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            async with atomic_celery.publishing_in(connection):
                office.task("add").delay(1)
            await connection.rollback()
            async with atomic_celery.publishing_in(connection):
                office.task("add").apply_async((2,), task_id="kept")
            await connection.commit()

    tell(story)

    assert office.task_ids() == ["kept"]


def test_tasks_of_the_loop_are_joined_each_to_its_own(office: Office, tell: Tell) -> None:
    inside: list[int] = []

    async def order(engine: AsyncEngine, number: int, all_inside: asyncio.Event) -> None:
        async with AsyncSession(engine) as session:
            async with atomic_celery.publishing_in(session):
                inside.append(number)
                if len(inside) == 4:
                    all_inside.set()
                await all_inside.wait()
                office.task("add").apply_async((number,), task_id=f"order-{number}")
            await (session.commit() if number % 2 else session.rollback())

    async def story(engine: AsyncEngine) -> None:
        if engine.dialect.name == "sqlite":  # one writer at a time
            return
        all_inside = asyncio.Event()
        await asyncio.gather(*(order(engine, number, all_inside) for number in range(4)))
        assert sorted(map(str, office.task_ids())) == ["order-1", "order-3"]

    tell(story)


def test_an_error_is_the_driver_s_own(office: Office, tell: Tell) -> None:
    async def story(engine: AsyncEngine) -> None:
        if engine.dialect.name == "sqlite":  # its transactions are not aborted by an error
            return
        async with AsyncSession(engine) as session:
            with pytest.raises(DBAPIError, match="nowhere"):
                await session.execute(text("SELECT * FROM nowhere"))
            with pytest.raises(DBAPIError, match="current transaction is aborted"):
                await _send(office, session)

    tell(story)

    assert office.task_ids() == []


def test_the_wrong_kind_of_block_is_refused(office: Office, tell: Tell) -> None:
    async def story(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            with pytest.raises(errors.ConfigError, match="takes: async with"), atomic_celery.publishing_in(session):
                pass
            with pytest.raises(errors.ConfigError, match="takes: with"):
                async with atomic_celery.publishing_in(session.sync_session):
                    pass

    tell(story)


async def _send(office: Office, session: AsyncSession) -> None:
    async with atomic_celery.publishing_in(session):
        office.task("add").delay(1)


async def _send_and_fail(office: Office, session: AsyncSession) -> None:
    async with atomic_celery.publishing_in(session):
        office.task("add").delay(1)
        raise ZeroDivisionError
