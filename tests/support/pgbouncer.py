"""A real PgBouncer in transaction mode in front of a `PostgresServer`."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from tests.support.binaries import unprivileged
from tests.support.daemons import free_port, launch, log_tail
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until

NOT_FOUND = """\
The pooler lane needs PgBouncer: install your system's package pgbouncer.
These tests run only when asked for: pytest -m pooler."""
CONFIGURATION = """\
[databases]
* = host=127.0.0.1 port={server_port}

[pgbouncer]
auth_file = {directory}/users.txt
auth_type = scram-sha-256
default_pool_size = {pool_size}
listen_addr = 127.0.0.1
listen_port = {port}
max_client_conn = 500
pool_mode = transaction
unix_socket_dir =
"""
START_S = 30.0


class PoolerNotFound(Exception):
    """PgBouncer is not installed."""


class PoolerFailed(Exception):
    """PgBouncer did not start; carries the end of its log."""


class PgBouncer:
    """A pooler of one's own; `url` turns a URL of the server into one through the pooler."""

    def __init__(self, server: PostgresServer, *, pool_size: int = 10) -> None:
        self._program = _find()
        self._account = unprivileged()
        self._server = server
        self._directory = Path(tempfile.mkdtemp(prefix="atomic-pgbouncer-"))
        self.port = free_port()
        self._configure(pool_size)

    def __enter__(self) -> PgBouncer:
        """Start it and wait until it listens."""
        self._process = launch([self._program, self._directory / "pgbouncer.ini"], self._account, self._log_path)
        wait_until(self._listening, START_S, lambda: log_tail(self._log_path))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait(START_S)
        shutil.rmtree(self._directory)

    def url(self, server_url: str) -> str:
        """Return *server_url* with the pooler's port in place of the server's."""
        parts = urlsplit(server_url)
        netloc = parts.netloc.replace(f":{self._server.port}", f":{self.port}")
        return parts._replace(netloc=netloc).geturl()

    @property
    def _log_path(self) -> Path:
        return self._directory / "pgbouncer.log"

    def _configure(self, pool_size: int) -> None:
        ini = CONFIGURATION.format(
            directory=self._directory,
            pool_size=pool_size,
            port=self.port,
            server_port=self._server.port,
        )
        self._write("pgbouncer.ini", ini)
        self._write("users.txt", f'"postgres" "{self._server.password}"\n')
        self._account.own(self._directory)

    def _write(self, name: str, text: str) -> None:
        path = self._directory / name
        path.write_text(text)
        path.chmod(0o600)
        self._account.own(path)

    def _listening(self) -> bool:
        if self._process.poll() is not None:
            raise PoolerFailed(log_tail(self._log_path))
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def _find() -> str:
    # Debian installs it where only root's PATH looks.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    program = shutil.which("pgbouncer", path=path)
    if program is None:
        raise PoolerNotFound(NOT_FOUND)
    return program
