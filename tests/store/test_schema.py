"""The tables are made and changed by command, once, and never used by a program that does not know them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier

import psycopg2
import pytest

from atomic_celery import errors
from atomic_celery.config import Settings
from atomic_celery.store import migrations
from atomic_celery.store.migrations import Migration
from atomic_celery.store.store import Store, open_store
from tests.support.postgres import Postgres

COMMAND = "celery -A .* atomic migrate"


@pytest.fixture
def bare(database_url: str) -> Iterator[Store]:
    """A store without tables."""
    store = open_store(database_url, Settings())
    yield store
    store.close()


def test_nothing_is_there_until_it_is_migrated(bare: Store) -> None:
    assert bare.schema.version() is None
    with pytest.raises(errors.SchemaMismatch, match=COMMAND):
        bare.schema.require()
    names = bare.schema.plan()
    assert names[0] == "0001_pre_tables"
    assert bare.schema.migrate() == names
    bare.schema.require()
    assert bare.schema.version() == bare.schema.target == len(names)


def test_migrating_again_changes_nothing(store: Store) -> None:
    assert store.schema.plan() == store.schema.migrate() == []


def test_programs_that_migrate_at_once_take_turns(bare: Store) -> None:
    together = Barrier(3)

    def migrate(_: int) -> list[str]:
        together.wait(timeout=60)
        return bare.schema.migrate()

    with ThreadPoolExecutor(3) as pool:
        done = sorted(pool.map(migrate, range(3)))
    assert done == [[], [], [step.name for step in migrations.load(bare.dialect)]]


NAMES = """
SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace
 UNION
SELECT conname FROM pg_constraint WHERE connamespace = 'public'::regnamespace
"""


def test_no_name_is_cut_under_the_longest_prefix(postgres: Postgres) -> None:
    """PostgreSQL cuts what is longer than 63 bytes without an error, and two names may become one."""
    names = {}
    for prefix in ("atomic", "p" * 24):
        url = postgres.create_database()
        with closing(open_store(f"atomic+{url}", Settings(prefix=prefix))) as store:
            store.schema.migrate()
        with closing(psycopg2.connect(url)) as session, session.cursor() as cursor:
            cursor.execute(NAMES)
            names[prefix] = {name.replace(f"{prefix}_", "atomic_") for (name,) in cursor.fetchall()}
        postgres.drop_database(url)
    assert len(names["atomic"]) > 50
    assert names["p" * 24] == names["atomic"]


def test_two_fleets_share_a_database_under_two_prefixes(database_url: str, store: Store) -> None:
    other = open_store(database_url, Settings(prefix="other_fleet_24_letters_x"))
    with pytest.raises(errors.SchemaMismatch, match="no other_fleet_24_letters_x_ tables"):
        other.schema.require()
    other.schema.migrate()
    other.queues.declare_exchange("theirs", "direct")
    assert store.queues.exchange_type("theirs") is None
    other.close()


@pytest.fixture
def later(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The same database as the next release sees it."""
    steps = migrations.load(store.dialect)
    next_number = steps[-1].number + 1
    added = Migration(next_number, "next_pre", True, "ALTER TABLE atomic_drain ADD COLUMN added text;")
    removed = Migration(next_number + 1, "next_post", False, "DROP TABLE atomic_drain;")
    monkeypatch.setattr(migrations, "load", lambda _: [*steps, added, removed])
    return Store(store.url, store.settings)


def test_what_only_adds_leaves_the_release_before_working(store: Store, later: Store) -> None:
    with pytest.raises(errors.SchemaMismatch, match=rf"needs {later.schema.target - 1}; run: {COMMAND}"):
        later.schema.require()
    assert later.schema.migrate(additive_only=True) == ["next_pre"]
    later.schema.require()
    store.schema.require()
    assert later.schema.plan() == ["next_post"]
    later.close()


def test_what_removes_ends_the_release_before(store: Store, later: Store) -> None:
    assert later.schema.migrate() == ["next_pre", "next_post"]
    later.schema.require()
    for act in (store.schema.require, store.schema.migrate):
        with pytest.raises(errors.SchemaMismatch, match="upgrade atomic_celery"):
            act()
    later.close()


def test_a_migration_that_fails_leaves_nothing_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = migrations.load(store.dialect)
    number = steps[-1].number + 1
    broken = Migration(
        number, "broken", True, "CREATE TABLE atomic_new (a text);\nSELECT nonsense FROM atomic_nowhere;"
    )
    monkeypatch.setattr(migrations, "load", lambda _: [*steps, broken])
    later = Store(store.url, store.settings)
    with pytest.raises(errors.SchemaMismatch):
        later.schema.migrate()
    assert (later.schema.version(), later.schema.plan()) == (number - 1, ["broken"])
    later.close()


def test_only_an_embedded_database_makes_itself(sqlite_url: str, postgres_url: str) -> None:
    embedded = open_store(sqlite_url, Settings(), create=True)
    embedded.schema.require()
    embedded.close()
    server = open_store(postgres_url, Settings(), create=True)
    assert server.schema.version() is None
    server.close()
