"""Whatever a platform's command line does, a real controller keeps its hosts, says what is wrong, and tries again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from atomic_celery.fleet.controller import TERM
from atomic_celery.store.hosts import HostReport
from tests.cli.conftest import CommandLine, World, cli, project, store, world
from tests.provisioners.conftest import Stage, lives, preset
from tests.support.freezing import freeze
from tests.support.waiting import wait_until

__all__ = ["cli", "project", "store", "world"]

SECRET = "hunter2-and-more"
TERM_S = 8.0
"""For who is to be frozen past it."""

LONG_TERM_S = 600.0


class Running:
    """A controller of its own process."""

    def __init__(self, cli: CommandLine, given: dict[str, Any], *words: str, term_s: float = LONG_TERM_S) -> None:
        self.path = cli.directory / "said"
        (cli.directory / "fleet.json").write_text(json.dumps(given))
        command = cli.command("atomic", "controller", "--provisioner", "fleet.json", "--json", *words)
        environ = {**cli.environment, "CLOUD_TOKEN": SECRET, "ATOMIC_TERM": str(term_s)}
        with self.path.open("w") as said:
            self.process = subprocess.Popen(
                command, cwd=cli.directory, env=environ, stdout=said, stderr=subprocess.STDOUT
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return what it has said under that name."""
        lines = [json.loads(line) for line in self.text.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    @property
    def text(self) -> str:
        """All that it has said."""
        return self.path.read_text()

    def wait_event(self, name: str) -> dict[str, Any]:
        """Wait until it has said it."""
        return wait_until(lambda: self.events(name), 60, lambda: self.text)[0]

    def end(self) -> int:
        """Tell it to end; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def start(cli: CommandLine, world: World) -> Iterator[Callable[..., Running]]:
    """Return what starts controllers; they are killed at the end."""
    started: list[Running] = []

    def begin(given: dict[str, Any], *words: str, **options: Any) -> Running:
        started.append(Running(cli, given, *words, **options))
        return started[-1]

    yield begin
    for running in started:
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGCONT)
            running.process.kill()
            running.process.wait(60)


def commands(**given: Any) -> dict[str, Any]:
    return {"kind": "command", "up": ["up"], "down": ["down"], "list": ["list-hosts"], **given}


@pytest.fixture
def changes(programs: Callable[[str, str], Path], tmp_path: Path) -> Path:
    """A file that `up` and `down` write to, if ever they run."""
    for name in ("up", "down"):
        programs(name, f"echo {name} >> {tmp_path}/changes")
    return tmp_path / "changes"


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        (None, "missing-cli", "the list command list-hosts cannot be started"),
        (
            'echo "quota of $CLOUD_TOKEN" >&2; exit 7',
            "exit",
            "the list command list-hosts exited with 7: quota of [redacted]",
        ),
        ("echo 'no hosts, '$CLOUD_TOKEN", "malformed", "it printed no JSON"),
        ("""echo '[{"id": "a", "state": "'$CLOUD_TOKEN'"}]'""", "malformed", "got '[redacted]'"),
        (
            "printf 'a\\000b \\033[31m\\355\\240\\200' >&2; exit 7",
            "exit",
            "the list command list-hosts exited with 7: a\0b \033[31m",
        ),
        ("""printf '[{"id": "a\\\\u0000b", "state": "running"}]'""", "malformed", "that a database can store"),
        ("head -c 200000 /dev/zero | tr '\\000' '['", "malformed", "it printed no JSON"),
        ("exec yes", "malformed", "list-hosts printed more than 64 MiB"),
    ],
)
def test_a_command_line_that_fails_degrades_the_controller_and_changes_nothing(
    start: Callable[..., Running],
    world: World,
    programs: Callable[[str, str], Path],
    changes: Path,
    script: str | None,
    code: str,
    said: str,
) -> None:
    world.publish("waiting")
    world.register("idle", provider_id="vm-1")
    if script is not None:
        programs("list-hosts", script)
    running = start(commands(), "--idle-drain", "0", "--max-hosts", "1")

    degraded = running.wait_event("degraded")

    assert (degraded["code"], degraded["failures"]) == (code, 1)
    assert said in degraded["error"]
    assert 5_000 < degraded["retry_in_ms"] <= 10_000
    assert running.end() == 0
    [recorded] = [event for event in world.store.events.list() if event.kind == "provider-degraded"]
    assert recorded.detail is not None
    assert recorded.detail["code"] == code
    assert [host.id for host in world.store.hosts.list()] == ["idle"]
    assert world.store.hosts.drains() == []
    assert not changes.exists()
    assert SECRET not in running.text
    assert SECRET not in str(world.store.events.list())


def test_a_listing_that_hangs_is_ended_with_all_that_it_started(
    start: Callable[..., Running], world: World, family: Callable[[], list[int]], changes: Path
) -> None:
    running = start(commands(timeoutMs=10_000))
    started = wait_until(family, 60)
    degraded = running.wait_event("degraded")
    assert degraded["code"] == "timeout"
    wait_until(lambda: not any(map(lives, started)), 60)
    assert running.end() == 0


@pytest.mark.parametrize(("words", "code"), [((), 0), (("--once",), 0), (("--dry-run",), 1)])
def test_a_controller_that_is_told_to_end_takes_its_command_along(
    start: Callable[..., Running], world: World, family: Callable[[], list[int]], words: tuple[str, ...], code: int
) -> None:
    running = start(commands(), *words)
    started = wait_until(family, 60)
    assert running.end() == code, running.text
    wait_until(lambda: not any(map(lives, started)), 60)
    standing = world.store.terms.look(TERM)
    assert standing is None if "--dry-run" in words else standing is not None and standing.free


def test_a_controller_that_was_frozen_past_its_term_ends_the_command_that_it_left_running(
    start: Callable[..., Running], world: World, family: Callable[[], list[int]]
) -> None:
    running = start(commands(), term_s=TERM_S)
    started = wait_until(family, 60)
    with world.store.transaction():  # on SQLite, nobody else could write if it stood still while it does
        world.store.now_ms()
        freeze(running.process.pid)
    wait_until(lambda: (term := world.store.terms.look(TERM)) is not None and term.free, 60)
    assert all(map(lives, started))
    os.kill(running.process.pid, signal.SIGCONT)
    wait_until(lambda: not any(map(lives, started)), 60, lambda: running.text)
    assert running.end() == 0


def test_a_controller_that_is_killed_leaves_nothing_of_its_own_behind(
    start: Callable[..., Running], world: World, family: Callable[[], list[int]]
) -> None:
    """Its command goes on, as it was asked to; what was to look after that does not."""
    running = start(commands())
    started = wait_until(family, 60)
    keeper = psutil.Process(started[0]).ppid()
    assert psutil.Process(keeper).ppid() == running.process.pid
    running.process.kill()
    wait_until(lambda: not lives(keeper), 60)
    assert all(map(lives, started))
    for process in started:
        os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize("stage", ["azure-vmss"], indirect=True)
def test_a_preset_grows_and_shrinks_a_fleet(start: Callable[..., Running], stage: Stage, world: World) -> None:
    message = world.publish("waiting")
    running = start(preset(stage.name), "--workers-per-host", "1", "--idle-drain", "0")
    running.wait_event("scale-up")
    assert wait_until(lambda: [each["name"] for each in stage.read()["instances"]], 60) == ["1"]

    stage.settle("Succeeded")
    world.register("host-1", provider_id="1")
    world.store.messages.delete([message])
    world.store.hosts.report("host-1", "boot", HostReport(slots=1, busy=0, queues=["celery"], idle_ms=1))
    wait_until(lambda: world.store.hosts.drains(), 60, lambda: running.text)
    world.store.hosts.leave("host-1", "boot")

    wait_until(lambda: {each["state"] for each in stage.read()["instances"]} == {"Deleting"}, 60, lambda: running.text)
    assert stage.read()["size"] == 0
    assert stage.read()["victims"] == []
