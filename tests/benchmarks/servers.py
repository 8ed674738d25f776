"""Private brokers of the peers: started on free ports in a temporary directory, and stopped."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.binaries import Account
from tests.support.daemons import free_port, launch, log_tail
from tests.support.waiting import wait_until

_RABBIT_PATH = "/usr/lib/rabbitmq/bin"  # the real scripts; those on PATH insist on a system user


class NotInstalledError(Exception):
    """A peer cannot be measured here: its server or its package is missing."""


def find(program: str, *, path: str | None = None) -> str:
    """Where *program* is.

    Raises:
        NotInstalledError: it is not here.
    """
    found = shutil.which(program, path=path) or shutil.which(program)
    if found is None:
        raise NotInstalledError(f"{program} not found")
    return found


@contextmanager
def redis(directory: Path) -> Iterator[int]:
    """A Redis server with its default persistence; yields its port."""
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
    with _running([find("redis-server"), *options], port, directory / "redis.log"):
        yield port


class RabbitNode:
    """A RabbitMQ node with a name registry of its own, and the commands that ask it."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._server = find("rabbitmq-server", path=_RABBIT_PATH)
        self._control = find("rabbitmqctl", path=_RABBIT_PATH)
        self._log = directory / "rabbitmq.log"
        self._settings = {
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(free_port()),
            "RABBITMQ_NODENAME": f"benchmark{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "logs"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
        }

    @contextmanager
    def running(self) -> Iterator[RabbitNode]:
        """The node, started and ready."""
        variables = [f"{name}={value}" for name, value in self._settings.items()]
        with _running(["/usr/bin/env", *variables, self._server], self.port, self._log):
            try:
                yield self
            finally:
                self._run(self._control, "--quiet", "stop")
                self._run(find("epmd"), "-kill")

    def backlog(self) -> int:
        """Messages in all queues, ready or unacknowledged."""
        listing = self._run(self._control, "-q", "list_queues", "--no-table-headers", "messages")
        return sum(map(int, listing.split()))

    def _run(self, *command: str) -> str:
        environment = {**os.environ, **self._settings}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout


@contextmanager
def _running(command: Sequence[str], port: int, log: Path) -> Iterator[None]:
    process = launch(command, Account(), log)
    try:
        wait_until(lambda: _answers(port), 60, lambda: log_tail(log))
        yield
    finally:
        process.terminate()
        process.wait(60)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
