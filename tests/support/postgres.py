"""A private PostgreSQL server that tests and benchmarks may start, freeze and kill.

    with PostgresServer() as server:
        url = server.create_database()

`PostgresServer` owns its server; `ExternalPostgres` only makes databases on somebody else's.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit

import psutil
import psycopg2

from tests.support.binaries import Account, postgres_directory, unprivileged
from tests.support.daemons import free_port, launch, log_tail
from tests.support.waiting import wait_until

SETTINGS = {
    # A client that was frozen while it signed in keeps a server from ending for so long: much less than START_S.
    "authentication_timeout": "15s",
    "log_line_prefix": "%m [%p] %a ",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "timezone": "UTC",
}
NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}
START_S = 60.0


class ServerFailed(Exception):
    """The server did not start; carries the end of its log."""


class Postgres:
    """A server on which databases can be made; knows its superuser's URL only."""

    def __init__(self, url: str) -> None:
        self._url = url

    def url(self, database: str) -> str:
        """Return the `postgresql://` URL of *database*."""
        return urlsplit(self._url)._replace(path=f"/{quote(database)}").geturl()

    def create_database(self, name: str | None = None) -> str:
        """Create an empty database and return its URL."""
        name = name or f"test_{secrets.token_hex(6)}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE template0 {self._strategy}')
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop the database of *url*, cutting off whoever is still connected."""
        name = urlsplit(url).path[1:]
        theirs = f"pg_stat_activity WHERE datname = '{name}' AND backend_type = 'client backend'"
        cut_off = f"SELECT pg_terminate_backend(pid) FROM {theirs}"
        wait_until(lambda: not self.execute(cut_off), describe=f"sessions of {name} live on")
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def execute(self, statement: str, *, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run one statement outside any transaction and return its rows."""
        connection = psycopg2.connect(self.url(database) if database else self._url)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    @cached_property
    def _strategy(self) -> str:
        # Two to three times as fast as the default, which PostgreSQL 15 brought.
        [(version,)] = self.execute("SHOW server_version_num")
        return "STRATEGY file_copy" if int(version) >= 150000 else ""


class ExternalPostgres(Postgres):
    """A server that somebody else runs; its URL may create databases."""


class PostgresServer(Postgres):
    """A server of one's own, listening on 127.0.0.1, with a directory that `close` removes.

    Args:
        durable: Whether commits are flushed to the disk. Benchmarks need it, tests do not:
            even a killed server loses nothing as long as the machine keeps running.
        settings: Server settings over the defaults.
    """

    def __init__(self, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> None:
        self._account = unprivileged()
        self._binaries = postgres_directory(self._account)
        self._directory = _new_directory(self._account)
        self._settings = {**SETTINGS, **({} if durable else NOT_DURABLE), **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.password = secrets.token_urlsafe(12)
        self.port = free_port()
        super().__init__(f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres")
        self._initialise()

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def log_path(self) -> Path:
        """The server's log."""
        return self._directory / "server.log"

    @property
    def pid(self) -> int | None:
        """The server's main process; None while it is stopped."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """Whether the server's main process exists, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it accepts connections.

        Raises:
            ServerFailed: It ended instead.
        """
        if self.running:
            return
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        self._process = launch(self._command(), self._account, self.log_path)
        wait_until(self._started, START_S, self._log_tail)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Shut the server down and wait; by default sessions are cut off but all is flushed."""
        if self._process is None:
            return
        self.kill(signal.SIGCONT)
        self._process.send_signal(how)
        try:
            self._process.wait(START_S)
        except subprocess.TimeoutExpired:
            left = (f"{process.pid} {process.status()} {process.cmdline()}" for process in _tree(self._process.pid))
            raise ServerFailed("\n".join([f"no end after {how.name}", *left, self._log_tail()])) from None
        self._process = None

    def restart(self) -> None:
        """Stop and start on the same port with the same data."""
        self.stop()
        self.start()

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Send *how* to every process of the server: SIGKILL, SIGSTOP or SIGCONT.

        After SIGKILL all of them are gone on return, and `start` recovers the data.
        """
        if self._process is None:
            return
        processes = _tree(self._process.pid)
        for process in processes:
            _signal(process, how)
        if how is signal.SIGKILL:
            self._process.wait(START_S)
            self._process = None
            wait_until(lambda: not any(map(_alive, processes)), START_S, "server processes live on")
        if how is signal.SIGSTOP:
            wait_until(lambda: all(map(_still, processes)), START_S, "server processes run on")

    def close(self) -> None:
        """End the server without ceremony and remove its directory."""
        self.kill(signal.SIGKILL)
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    def _initialise(self) -> None:
        secret = self._directory / "password"
        secret.write_text(self.password)
        self._account.own(secret)
        command = [
            self._binaries / "initdb",
            f"--pgdata={self._data}",
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--username=postgres",
        ]
        run = subprocess.run(
            command,
            capture_output=True,
            check=False,
            cwd="/",
            text=True,
            **self._account.popen_options(),  # type: ignore[call-overload]
        )
        if run.returncode != 0:
            raise ServerFailed(f"initdb failed:\n{run.stdout}\n{run.stderr}")

    def _command(self) -> list[str]:
        own = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._directory),
        }
        options = [f"--{name}={value}" for name, value in {**self._settings, **own}.items()]
        return [str(self._binaries / "postgres"), "-D", str(self._data), *options]

    def _started(self) -> bool:
        # The status that pg_ctl waits for: the last line of the pid file.
        if not self.running:
            raise ServerFailed(self._log_tail())
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[7].strip() == "ready"

    def _log_tail(self) -> str:
        return f"PostgreSQL in {self._binaries} did not start:\n{log_tail(self.log_path)}"


def _new_directory(account: Account) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="atomic-pg-"))
    account.own(directory)
    return directory


def _tree(pid: int) -> list[psutil.Process]:
    try:
        main = psutil.Process(pid)
        return [main, *main.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _signal(process: psutil.Process, how: signal.Signals) -> None:
    try:
        os.kill(process.pid, how)
    except ProcessLookupError:
        return


def _still(process: psutil.Process) -> bool:
    return not _alive(process) or bool(process.status() == psutil.STATUS_STOPPED)


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
