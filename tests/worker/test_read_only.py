"""A database user that may only read: whoever wants to write with it says what is missing."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from atomic_celery import errors
from tests.support.postgres import Postgres
from tests.support.workers import ROOT, Fleet

NEEDED = "the database user needs SELECT, INSERT, UPDATE and DELETE on all tables of the prefix"


@pytest.fixture
def url(postgres: Postgres, postgres_url: str) -> Iterator[str]:
    """The database, as a user opens it that may read all of it."""
    name, parts = f"reader_{secrets.token_hex(4)}", urlsplit(postgres_url)
    postgres.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'reader'")
    postgres.execute(f"GRANT pg_read_all_data TO {name}")
    yield parts._replace(netloc=f"{name}:reader@{parts.hostname}:{parts.port}").geturl()
    postgres.execute(f"REASSIGN OWNED BY {name} TO CURRENT_USER", database=parts.path[1:])
    postgres.execute(f"DROP ROLE {name}")


@pytest.fixture
def fleet(url: str, postgres_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet whose workers are that user."""
    with closing(Fleet(postgres_url, tmp_path, broker=url)) as fleet:
        yield fleet


def celery(fleet: Fleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "celery", "-A", fleet.application, *arguments],
        capture_output=True,
        check=False,
        cwd=fleet.directory,
        env={**os.environ, **fleet.env, "PYTHONPATH": str(ROOT)},
        text=True,
        timeout=60,
    )


def test_a_worker_does_not_start(fleet: Fleet) -> None:
    worker = fleet.worker().start()
    assert worker.wait() == 1
    said = (fleet.directory / "w.log").read_text()
    assert "Worker host setup is incomplete" in said
    assert NEEDED in said
    assert "Traceback" not in said


def test_a_worker_that_loses_the_right_is_degraded_until_it_has_it_again(
    postgres: Postgres, url: str, postgres_url: str, fleet: Fleet
) -> None:
    name, database = urlsplit(url).username, urlsplit(postgres_url).path[1:]
    postgres.execute(f"GRANT pg_write_all_data TO {name}")
    worker = fleet.worker().start()
    worker.wait_line("ready")
    postgres.execute(f"REVOKE pg_write_all_data FROM {name}", database=database)
    worker.wait_degraded(NEEDED)
    postgres.execute(f"GRANT pg_write_all_data TO {name}")
    worker.wait_line("recovered")
    fleet.send("note", "after")
    assert fleet.wait_done(1) == ["after"]


@pytest.mark.parametrize("command", [["atomic", "drain", "h"], ["atomic", "status"]], ids=" ".join)
def test_commands_say_what_is_missing(fleet: Fleet, command: list[str]) -> None:
    done = celery(fleet, *command)
    assert done.returncode == 1
    assert NEEDED in done.stdout + done.stderr
    assert "look for" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_publisher_is_told(fleet: Fleet) -> None:
    fleet.app.conf.broker_url = fleet.broker
    with pytest.raises(errors.StoreError, match=NEEDED):
        fleet.send("note", "never")
