"""A migrated database of each kind, and kombu connections to it that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import kombu
import pytest

import atomic_celery  # noqa: F401 - bare kombu loads no entry points before it connects
from atomic_celery.config import Settings
from atomic_celery.store import Store, open_store

Connect = Callable[..., kombu.Connection]


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """The store of the test's database, with its tables, to look at what became of things."""
    opened = open_store(database_url, Settings())
    opened.schema.migrate()
    yield opened
    opened.close()


@pytest.fixture
def url(store: Store, database_url: str) -> str:
    """The same database as kombu names it."""
    return f"atomic+{database_url}"


@pytest.fixture(autouse=True)
def patient_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a connection give back what it holds, however long a busy machine takes for it."""
    monkeypatch.setattr("atomic_celery.transport.intake.CLOSE_WITHIN_S", 60.0)


@pytest.fixture
def connect(url: str, patient_closing: None) -> Iterator[Connect]:
    """Open connections to the test's database; each has its own routing memory, as in a process of its own."""
    with ExitStack() as opened:

        def connect(to: str = url, **options: object) -> kombu.Connection:
            return opened.enter_context(kombu.Connection(to, **options))

        yield connect
