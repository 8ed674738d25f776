"""The file of a SQLite database is taken away from the processes that use it."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kombu.exceptions import OperationalError

from atomic_celery import clock, errors
from atomic_celery.config import Settings
from atomic_celery.store import open_store
from atomic_celery.store.database_file import LOOK_EVERY_S
from tests.support.waiting import wait_until
from tests.support.workers import HASTY, Fleet
from tests.worker.test_losing import gone


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file."""
    return tmp_path / "fleet.db"


@pytest.fixture
def fleet(path: Path, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet in it."""
    with closing(Fleet(f"sqlite:///{path}", tmp_path, settings=HASTY)) as fleet:
        yield fleet


def set_aside(path: Path) -> Path:
    """Move the database somewhere else, with what belongs to it."""
    aside = path.with_name("aside")
    aside.mkdir()
    for part in path.parent.glob(f"{path.name}*"):
        part.rename(aside / part.name)
    return aside


def put_back(aside: Path) -> None:
    for part in aside.iterdir():
        part.rename(aside.parent / part.name)


def copy(source: Path, target: Path) -> None:
    """Make a backup of a database, with nothing left beside it."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def test_a_file_that_is_taken_away_is_missed_and_neither_used_nor_made_anew(fleet: Fleet, path: Path) -> None:
    worker = fleet.worker().start()
    worker.wait_line("ready")
    fleet.send("note", "before")
    fleet.wait_done(1)
    aside = set_aside(path)
    said = worker.wait_degraded("was deleted or moved while it was in use")
    assert str(path) in said
    assert "restart every process that used it" in said
    with pytest.raises(OperationalError, match="was deleted or moved while it was in use"):
        wait_until(lambda: fleet.send("note", "early", retry=False) is None)  # the old file has it: it runs later
    assert not path.exists()
    put_back(aside)
    worker.wait_line("recovered")
    fleet.send("note", "after")
    fleet.wait_until(lambda: not fleet.unfinished(), what="all is settled")
    assert {"before", "after"} <= set(fleet.ledger.rows()) <= {"before", "early", "after"}
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_file_that_is_replaced_is_not_confused_with_the_one_it_was(fleet: Fleet, path: Path) -> None:
    """The fences that a worker holds are of the old file; in the new one the same may belong to somebody else."""
    worker = fleet.worker().start()
    fleet.send("gate", "g", str(fleet.directory))
    child = fleet.gate("g")
    copy(path, path.with_name("backup"))
    set_aside(path)
    path.with_name("backup").rename(path)
    worker.wait_degraded("was replaced by another one while it was in use")
    fleet.wait_until(lambda: gone(child), what="the child ends at its own fence")
    worker.wait_line("lost", reason="expired")
    worker.signal(signal.SIGTERM)
    worker.wait()
    fleet.open_gate("g")
    fleet.worker("next").start().wait_line("claimed", fence=2)
    assert fleet.wait_done(1) == ["g"]


def test_the_file_is_looked_for_once_a_second_and_not_at_each_statement(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"sqlite:///{path}", Settings())
    store.schema.migrate()
    now_s = clock.monotonic_s() + LOOK_EVERY_S
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s)
    store.now_ms()
    aside = set_aside(path)
    store.now_ms()
    now_s += LOOK_EVERY_S
    for _ in range(2):
        with pytest.raises(errors.StoreUnavailable, match="was deleted or moved while it was in use"):
            store.now_ms()
    put_back(aside)
    store.now_ms()
