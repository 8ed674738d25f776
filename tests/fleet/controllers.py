"""Controllers that are processes of their own, on one database and a platform in a folder."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

from atomic_celery.fleet.controller import TERM
from tests.cli.conftest import CommandLine, World
from tests.support.freezing import freeze
from tests.support.waiting import wait_until

TERM_S = 12.0
"""Short enough to wait for its end, long enough for all that a controller does within one."""
CLOUD = "tests.fleet.folder_cloud"


class Controllers:
    """Controllers on one database and one folder."""

    def __init__(self, cli: CommandLine, world: World, folder: Path) -> None:
        self.cli, self.world, self.folder = cli, world, folder
        self._started: list[subprocess.Popen[str]] = []

    @property
    def environment(self) -> dict[str, str]:
        return {**self.cli.environment, "ATOMIC_TERM": str(TERM_S), "ATOMIC_TEST_CLOUD": str(self.folder)}

    def start(self, *words: str, broker: str | None = None, **env: str) -> subprocess.Popen[str]:
        """Start one, on another way to the database if need be; it is killed at the end of the test at the latest."""
        way = ("-b", broker) if broker else ()
        command = self.cli.command(*way, "atomic", "controller", "--provisioner", CLOUD, "--json", *words)
        with (self.folder / f"out.{len(self._started)}").open("w") as said:
            process = subprocess.Popen(
                command,
                cwd=self.cli.directory,
                env={**self.environment, **env},
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self._started.append(process)
        return process

    def lines(self, process: subprocess.Popen[str]) -> list[dict[str, Any]]:
        """Return what one has said."""
        lines = (self.folder / f"out.{self._started.index(process)}").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def said(self, process: subprocess.Popen[str]) -> list[str]:
        """Return the names of the events that one has said."""
        return [str(line["event"]) for line in self.lines(process)]

    def calls(self) -> list[tuple[int, str]]:
        """Return who has called what, in order."""
        log = self.folder / "calls.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [(int(pid), name) for pid, name in (line.split() for line in lines)]

    def leads(self, process: subprocess.Popen[str]) -> bool:
        standing = self.world.store.terms.look(TERM)
        return standing is not None and not standing.free and standing.holder.split("/")[1] == str(process.pid)

    def freeze(self, process: subprocess.Popen[str]) -> None:
        """Stop one while it writes nothing: on SQLite, nobody else could write before it goes on."""
        with self.world.store.transaction():
            self.world.store.now_ms()
            freeze(process.pid)

    def wait_until(self, predicate: object, what: str) -> None:
        wait_until(predicate, 60, lambda: f"{what}\n{self}")  # type: ignore[arg-type]

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait(60)

    def __str__(self) -> str:
        outputs = [(self.folder / f"out.{number}").read_text() for number in range(len(self._started))]
        return "\n".join([str(self.calls()), *outputs])
