"""A Celery app over each database, and a look at what it published."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from celery import Celery

from atomic_celery import mailbag
from atomic_celery.config import Settings
from atomic_celery.store import Store, open_store
from atomic_celery.store.reads import MessageView
from tests.publishing.tasks import make_app


@pytest.fixture(autouse=True)
def _nothing_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no pause of a busy machine decide a test."""
    monkeypatch.setattr(mailbag, "SLOW_S", math.inf)


@dataclass(frozen=True)
class Office:
    """An app, and the database it publishes to."""

    app: Celery
    store: Store

    def task(self, name: str) -> Any:
        """Return one of `tests.publishing.tasks`."""
        return self.app.tasks[name]

    def views(self) -> list[MessageView]:
        """Return what is stored, in the order of publishing."""
        return sorted(self.store.reads.messages(limit=100_000), key=lambda view: view.id)

    def stored(self) -> list[dict[str, Any]]:
        """Return what is stored as kombu wrote it, in the order of publishing."""
        payloads = (self.store.reads.payload(view.id) for view in self.views())
        return [json.loads(payload) for payload in payloads if payload is not None]

    def task_ids(self) -> list[str | None]:
        """Return the task ids of what is stored, in the order of publishing."""
        return [view.task_id for view in self.views()]

    def purge(self) -> None:
        """Remove everything that is stored."""
        self.store.messages.delete([view.id for view in self.views()])


def open_office(database_url: str) -> Iterator[Office]:
    """Yield an app and its database, with tables; both are closed in the end."""
    store = open_store(database_url, Settings())
    store.schema.migrate()
    with make_app(f"atomic+{database_url}") as app:
        yield Office(app, store)
    store.close()


@pytest.fixture
def office(database_url: str) -> Iterator[Office]:
    """An app on SQLite and on PostgreSQL in turn."""
    yield from open_office(database_url)
