"""One worker on each kind of database, for all tests of a module."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from celery import Signature

from tests.support.django_databases import database
from tests.support.postgres import Postgres
from tests.support.workers import Fleet

APPLICATION = "tests.results.application"
DJANGO = {"DJANGO_SETTINGS_MODULE": "tests.results.site"}

SHARED = {"add", "fail", "gate", "note", "note_failure", "retry", "total"}
"""Tasks of the application that all tests have."""

NewFleet = Callable[..., Fleet]


def signature(fleet: Fleet, name: str, *args: Any, **options: Any) -> Signature[Any]:
    """Return the signature of a task of the application, by name."""
    module = "tests.support.application" if name in SHARED else APPLICATION
    return fleet.app.signature(f"{module}.{name}", args=args, **options)


def require_once(fleet: Fleet, names: Iterable[str]) -> None:
    """Require that each of these ran as one message: once, or again under another fence if its row says which."""
    for name in names:
        runs = [row for row in fleet.ledger.rows() if row.partition(" under ")[0] == name]
        assert runs, f"{name} never ran\n{fleet.describe()}"
        assert sorted(set(runs)) == sorted(runs), f"{name} was there twice\n{fleet.describe()}"


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def serving(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgres: Postgres
) -> Iterator[Fleet]:
    """A fleet with a worker that is ready; results are kept in its database, in our tables or (``… rows``) Django's."""
    dialect, _, rows = request.param.partition(" ")
    directory = tmp_path_factory.mktemp("results")
    url = f"sqlite:///{directory / 'atomic.db'}" if dialect == "sqlite" else postgres.create_database()
    with in_django(url) if rows else nullcontext():
        backend = "atomic+django-db" if rows else "atomic"
        conf = {"result_extended": True, "task_track_started": True} if rows else {}
        with closing(Fleet(url, directory, results=backend, application=APPLICATION, conf=conf)) as fleet:
            fleet.env.update(DJANGO if rows else {}, TEST_ROWS=url)
            fleet.worker(slots=2).start().wait_line("ready")
            yield fleet
    if dialect == "postgresql":
        postgres.drop_database(url)


@contextmanager
def in_django(url: str) -> Iterator[None]:
    """Let the tables of django-celery-results be in a database, for this process."""
    os.environ.update(DJANGO)
    import django
    from django.core.management import call_command
    from django.db import connections

    django.setup()
    connections.databases["default"] = connections.configure_settings({"default": database(url)})["default"]
    del connections["default"]
    call_command("migrate", verbosity=0)
    try:
        yield
    finally:
        connections.close_all()
        for name in DJANGO:
            del os.environ[name]


@pytest.fixture
def s(serving: Fleet) -> Callable[..., Signature[Any]]:
    """Return the signature of a task of the application, by name."""

    def sign(name: str, *args: Any, **options: Any) -> Signature[Any]:
        return signature(serving, name, *args, **options)

    return sign


@pytest.fixture
def new_fleet(database_url: str, tmp_path: Path) -> Iterator[NewFleet]:
    """Make fleets on an empty database, of each kind in turn."""
    with ExitStack() as opened:

        def make(**options: Any) -> Fleet:
            options = {"results": "atomic", "application": APPLICATION, **options}
            return opened.enter_context(closing(Fleet(database_url, tmp_path, **options)))

        yield make
