"""Private brokers of the peers: started on free ports in a temporary directory, and stopped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.postgres import free_port
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
    command = [
        find("redis-server"),
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(directory),
    ]
    with _process(command, log=directory / "redis.log"):
        wait_until(lambda: _answers(port), describe="Redis does not listen")
        yield port


class RabbitNode:
    """A RabbitMQ node and the commands that ask it."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._server = find("rabbitmq-server", path=_RABBIT_PATH)
        self._control = find("rabbitmqctl", path=_RABBIT_PATH)
        self._log = directory / "rabbitmq.log"
        self._environment = {
            **os.environ,
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
    def running(self) -> Iterator[None]:
        """The node, started and ready."""
        with _process([self._server], log=self._log, environment=self._environment):
            try:
                wait_until(lambda: _answers(self.port), 60, self._log.read_text)
                yield
            finally:
                self._stop()

    def backlog(self) -> int:
        """Messages in all queues, ready or unacknowledged."""
        listing = self._ask("list_queues", "--no-table-headers", "messages")
        return sum(map(int, listing.split()))

    def _stop(self) -> None:
        self._ask("stop")
        command = [find("epmd"), "-kill"]
        subprocess.run(command, env=self._environment, capture_output=True, check=False)

    def _ask(self, *words: str) -> str:
        done = subprocess.run(
            [self._control, "--quiet", *words],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout


@contextmanager
def rabbitmq(directory: Path) -> Iterator[RabbitNode]:
    """A RabbitMQ node of its own, with its own name registry."""
    node = RabbitNode(directory)
    with node.running():
        yield node


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _process(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
