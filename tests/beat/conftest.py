"""Beats with a schedule of two runs a second and short terms, on each kind of database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from atomic_celery.config import Settings
from atomic_celery.store.store import Store, open_store
from tests.beat.beats import EVERY_S, QUICK, Beats
from tests.support.workers import Fleet

SCHEDULE = {"tick": {"task": "tick", "schedule": EVERY_S}}

MakeBeats = Callable[..., Beats]


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """A store with tables and nothing in them, on SQLite and on PostgreSQL in turn."""
    with closing(open_store(database_url, Settings())) as made:
        made.schema.migrate()
        yield made


@pytest.fixture
def make_beats(tmp_path: Path) -> Iterator[MakeBeats]:
    """Make beats on a database: `make_beats(url, missed="last")`."""
    with ExitStack() as closing_all:

        def make(url: str, *, schedule: Any = None, missed: str = "all") -> Beats:
            # Whatever a busy machine takes for a run that is late must not decide a test.
            settings = {**QUICK, "ATOMIC_BEAT_MISSED": missed}
            conf = {"beat_schedule": schedule or SCHEDULE}
            fleet = closing_all.enter_context(closing(Fleet(url, tmp_path, conf=conf, settings=settings)))
            return closing_all.enter_context(closing(Beats(fleet)))

        yield make


@pytest.fixture
def beats(database_url: str, make_beats: MakeBeats) -> Beats:
    """Beats that make up for every run, however late."""
    return make_beats(database_url)
