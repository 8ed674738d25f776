"""The private server does what the fault tests will ask of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pytest

from tests.support.freezing import freeze
from tests.support.postgres import Postgres, PostgresServer
from tests.support.waiting import wait_until


def test_databases_are_empty_and_apart(postgres: Postgres) -> None:
    first, second = postgres.create_database(), postgres.create_database()
    _run(first, "CREATE TABLE only_here (n int)")

    with pytest.raises(psycopg2.errors.UndefinedTable):
        _run(second, "SELECT * FROM only_here")

    postgres.drop_database(first)
    postgres.drop_database(second)


def test_dropping_a_database_cuts_off_who_is_connected(postgres: Postgres) -> None:
    url = postgres.create_database()
    connection = psycopg2.connect(url)

    postgres.drop_database(url)

    with pytest.raises(psycopg2.OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    connection.close()


def test_a_killed_server_keeps_what_was_committed(own_postgres: PostgresServer) -> None:
    url = own_postgres.create_database()
    _run(url, "CREATE TABLE kept AS SELECT 42 AS n")

    own_postgres.kill(signal.SIGKILL)
    with pytest.raises(psycopg2.OperationalError):
        psycopg2.connect(url)
    own_postgres.start()

    assert _run(url, "SELECT n FROM kept") == [(42,)]


def test_a_frozen_client_that_connects_while_a_server_ends_holds_it_up_for_seconds_only(
    own_postgres: PostgresServer,
) -> None:
    """Who is to be told that the server ends is waited for, and says nothing."""
    assert own_postgres.pid is not None
    connection = psycopg2.connect(own_postgres.url("postgres"))
    freeze(connection.info.backend_pid)  # keeps the server from ending before the client is there
    os.kill(own_postgres.pid, signal.SIGINT)
    wait_until(lambda: "fast shutdown" in own_postgres.log_path.read_text())
    with socket.create_connection(("127.0.0.1", own_postgres.port), timeout=30):
        children = psutil.Process(own_postgres.pid).children
        wait_until(lambda: any(len(child.cmdline()) > 1 for child in children()))  # it has no title yet
        os.kill(connection.info.backend_pid, signal.SIGCONT)
        own_postgres.stop()
    assert not own_postgres.running


def test_a_restarted_server_answers_under_the_same_url(own_postgres: PostgresServer) -> None:
    url = own_postgres.create_database()
    own_postgres.restart()
    assert _run(url, "SELECT 1") == [(1,)]


def test_a_frozen_server_answers_only_after_it_is_thawed(own_postgres: PostgresServer) -> None:
    url = own_postgres.create_database()
    connection = psycopg2.connect(url)
    [(backend,)] = _run_on(connection, "SELECT pg_backend_pid()")

    own_postgres.kill(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(backend).status() == psutil.STATUS_STOPPED, 60)
    own_postgres.kill(signal.SIGCONT)

    assert _run_on(connection, "SELECT 1") == [(1,)]
    connection.close()


ABANDON = """
import os, signal
from tests.support.postgres import PostgresServer
server = PostgresServer()
server.start()
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can promise it")
def test_a_server_dies_with_the_process_that_started_it(open_directory: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(open_directory)}
    command = [sys.executable, "-c", ABANDON]
    run = subprocess.run(command, check=False, env=environment, stdout=subprocess.PIPE, text=True)
    pid = int(run.stdout)
    wait_until(lambda: not psutil.pid_exists(pid), 60, f"server {pid} outlived its parent")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that the server's account can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def _run(url: str, statement: str) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(url)
    try:
        return _run_on(connection, statement)
    finally:
        connection.close()


def _run_on(connection: psycopg2.extensions.connection, statement: str) -> list[tuple[Any, ...]]:
    with connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []
