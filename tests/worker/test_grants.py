"""A role that may only what the documentation says runs a fleet, and cannot make its tables."""

from __future__ import annotations

import re
import secrets
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from atomic_celery.config import Settings
from atomic_celery.errors import StoreError
from atomic_celery.store import open_store
from tests.cli.conftest import project
from tests.support.postgres import Postgres
from tests.support.workers import ROOT, Fleet

PAGE = ROOT / "docs" / "guides" / "fleets" / "postgresql.md"


def grants() -> list[str]:
    """Return the statements of the page."""
    return [
        line
        for line in PAGE.read_text().splitlines()
        if re.match(r"(GRANT|ALTER DEFAULT PRIVILEGES) .* TO worker;$", line)
    ]


def grant(postgres: Postgres, owner_url: str, worker_url: str) -> None:
    """Run them, for the two roles of these URLs."""
    owner, worker = urlsplit(owner_url), urlsplit(worker_url)
    assert len(grants()) == 5
    for statement in grants():
        named = statement.replace("ROLE owner ", f"ROLE {owner.username} ").replace("worker;", f"{worker.username};")
        postgres.execute(named, database=owner.path[1:])


@pytest.fixture
def worker_url(postgres: Postgres, postgres_url: str) -> Iterator[str]:
    """The database, as a role opens it that may nothing in it yet."""
    name, parts = f"worker_{secrets.token_hex(4)}", urlsplit(postgres_url)
    postgres.execute(f"CREATE ROLE {name} LOGIN PASSWORD 's3cr3t'")
    yield f"postgresql://{name}:s3cr3t@{parts.hostname}:{parts.port}{parts.path}"
    postgres.execute(f"DROP OWNED BY {name}", database=parts.path[1:])
    postgres.execute(f"DROP ROLE {name}")


def test_a_role_with_the_documented_rights_runs_a_fleet(
    postgres: Postgres, postgres_url: str, worker_url: str, tmp_path: Path
) -> None:
    there, results = worker_url, f"atomic+{worker_url}"
    with closing(Fleet(postgres_url, tmp_path, broker=there, results=results, quick=False)) as fleet:
        grant(postgres, postgres_url, worker_url)
        worker = fleet.worker(slots=2).start()
        worker.wait_line("ready")
        fleet.send("retry", 1)
        fleet.send("fail")
        fleet.send("note", "ran")
        fleet.send("die", 1)
        fleet.wait_until(lambda: not fleet.unfinished(), 60)
        assert "ran" in fleet.ledger.rows()

        cli = project(tmp_path, f"atomic+{worker_url}")
        (tmp_path / "cloud").mkdir()
        provisioner = ("--provisioner", "tests.fleet.folder_cloud", "--min-hosts", "3", "--once")
        environ = {"ATOMIC_TEST_CLOUD": str(tmp_path / "cloud")}
        for words in (
            ("status",),
            ("doctor",),
            ("controller", *provisioner),
            ("drain", "w@test"),
            ("undrain", worker.events("ready")[0]["host"]),
        ):
            run = cli(*words, env=environ)
            assert run.returncode == 0, (words, run.stdout, run.stderr)
        assert list((tmp_path / "cloud").glob("vm-*.json"))
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert worker.events("degraded") == []


def test_that_role_uses_tables_that_are_made_after_the_grants(
    postgres: Postgres, postgres_url: str, worker_url: str, tmp_path: Path
) -> None:
    grant(postgres, postgres_url, worker_url)
    with closing(open_store(postgres_url, Settings(prefix="second"))) as store:
        store.schema.migrate()

    cli = project(tmp_path, f"atomic+{worker_url}")
    for words in (("status",), ("drain", "i-1"), ("undrain", "i-1")):
        run = cli("--prefix", "second", *words)
        assert run.returncode == 0, (words, run.stdout, run.stderr)


def test_that_role_cannot_make_the_tables(postgres: Postgres, worker_url: str, postgres_url: str) -> None:
    database = urlsplit(postgres_url).path[1:]
    postgres.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC", database=database)  # as it is since PostgreSQL 15
    with (
        closing(open_store(worker_url, Settings())) as store,
        pytest.raises(StoreError, match=r"denied for schema public; .* GRANT USAGE, CREATE ON SCHEMA public TO"),
    ):
        store.schema.migrate()
