"""Which server the tests run on is somebody's choice; that there is none is an error, not a skip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.postgres import PostgresServer

NEEDS_A_DATABASE = "tests/harness/test_postgres.py::test_databases_are_empty_and_apart"


def test_without_a_server_the_session_fails_and_says_what_to_do(tmp_path: Path) -> None:
    run = _pytest(NEEDS_A_DATABASE, ATOMIC_TEST_POSTGRES_BIN=str(tmp_path))

    assert run.returncode == 1
    assert "No PostgreSQL server to test against" in run.stdout
    assert "ATOMIC_TEST_POSTGRES_URL" in run.stdout
    assert "skipped" not in run.stdout


def test_a_server_named_in_the_environment_is_used(own_postgres: PostgresServer, tmp_path: Path) -> None:
    url = own_postgres.url("postgres")
    run = _pytest(NEEDS_A_DATABASE, ATOMIC_TEST_POSTGRES_BIN=str(tmp_path), ATOMIC_TEST_POSTGRES_URL=url)

    assert run.returncode == 0, run.stdout
    assert "PostgreSQL: ATOMIC_TEST_POSTGRES_URL" in run.stdout


def _pytest(test: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ATOMIC_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test],
        check=False,
        cwd=Path(__file__).parents[2],
        env={**inherited, **environment},
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
