"""`celery atomic controller` as real processes: started, frozen past their term, ended; a platform in a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from atomic_celery.fleet.controller import TERM
from tests.cli.conftest import CommandLine, World, cli, project, store, world
from tests.faults.skew import Skew
from tests.fleet.controllers import CLOUD, Controllers
from tests.support.stray_signals import signal_another_thread
from tests.support.workers import LONG_TERM

__all__ = ["cli", "store", "world"]


@pytest.fixture
def controllers(cli: CommandLine, world: World, tmp_path: Path) -> Iterator[Controllers]:
    folder = tmp_path / "cloud"
    folder.mkdir()
    made = Controllers(cli, world, folder)
    yield made
    made.close()


def test_a_controller_adds_hosts_and_hands_over_when_it_is_told_to_end(controllers: Controllers) -> None:
    controllers.world.publish("t1")
    process = controllers.start("--workers-per-host", "1", **LONG_TERM)
    controllers.wait_until(lambda: list(controllers.folder.glob("vm-*.json")), "an instance is added")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    standing = controllers.world.store.terms.look(TERM)
    assert standing is not None
    assert standing.free
    assert controllers.said(process) == ["controller-active", "scale-up", "stopped"]


def test_a_controller_ends_whichever_of_its_threads_the_signal_finds(controllers: Controllers) -> None:
    process = controllers.start(**LONG_TERM)
    controllers.wait_until(lambda: (process.pid, "list") in controllers.calls(), "it ticks")
    signal_another_thread(process.pid, signal.SIGTERM)
    assert process.wait(60) == 0
    assert controllers.said(process) == ["controller-active", "stopped"]


@pytest.mark.parametrize("where", ["list", "scale_to"])
def test_a_controller_that_was_frozen_past_its_term_calls_nothing_when_it_goes_on(
    controllers: Controllers, where: str
) -> None:
    """It froze in the middle of a call, before the one thing that would have changed the platform."""
    controllers.world.publish("t1")
    (controllers.folder / f"hold.{where}").touch()
    frozen = controllers.start("--workers-per-host", "1")
    controllers.wait_until(lambda: (controllers.folder / f"came.{where}.{frozen.pid}").exists(), f"{where} has begun")
    controllers.freeze(frozen)
    before = [call for call in controllers.calls() if call[0] == frozen.pid]
    (controllers.folder / f"hold.{where}").unlink()
    successor = controllers.start("--workers-per-host", "1", **LONG_TERM)
    controllers.wait_until(lambda: (successor.pid, "list") in controllers.calls(), "another one has taken over")
    os.kill(frozen.pid, signal.SIGCONT)
    controllers.wait_until(lambda: "controller-standby" in controllers.said(frozen), "the frozen one stands by")
    assert [call for call in controllers.calls() if call[0] == frozen.pid] == before
    # What the frozen one had noted that it would ask for counts as asked for: nobody asks twice.
    if where == "list":
        controllers.wait_until(lambda: (successor.pid, "scale_to") in controllers.calls(), "the other one adds a host")
        controllers.wait_until(lambda: list(controllers.folder.glob("vm-*.json")), "it is there")
    made = [path.name for path in controllers.folder.glob("vm-*.json")]
    assert len(made) == (1 if where == "list" else 0), made
    assert controllers.leads(successor)


def test_a_controller_whose_wall_clock_jumps_in_the_middle_of_a_call_does_not_go_on_with_it(
    controllers: Controllers, tmp_path: Path
) -> None:
    """As after a sleep of the machine, while the monotonic clock stood still: by that one a minute is left."""
    skew = Skew(tmp_path / "clock")
    controllers.world.publish("t1")
    hold = controllers.folder / "hold.scale_to"
    hold.touch()
    path = os.pathsep.join([skew.env["PYTHONPATH"], controllers.environment["PYTHONPATH"]])
    env = {**skew.env, "PYTHONPATH": path, "ATOMIC_TERM": "60"}
    process = controllers.start("--workers-per-host", "1", **env)
    controllers.wait_until(lambda: (controllers.folder / f"came.scale_to.{process.pid}").exists(), "a call has begun")
    skew.step(+300)
    controllers.wait_until(lambda: {"given-up", "lost"} & set(controllers.said(process)), "it is given up")
    hold.unlink()
    listed = controllers.calls().count((process.pid, "list"))
    controllers.wait_until(lambda: controllers.calls().count((process.pid, "list")) > listed, "it leads anew")
    assert (process.pid, "scale_to") not in controllers.calls()
    assert not list(controllers.folder.glob("vm-*.json"))


def test_of_two_controllers_one_makes_all_calls_until_it_is_killed(controllers: Controllers) -> None:
    first = controllers.start(ATOMIC_TERM="20")
    controllers.wait_until(lambda: controllers.leads(first), "the first leads")
    second = controllers.start(ATOMIC_TERM="20")
    controllers.wait_until(lambda: "controller-standby" in controllers.said(second), "the second stands by")
    controllers.wait_until(lambda: len(controllers.calls()) >= 2, "two ticks")
    assert {pid for pid, _ in controllers.calls()} == {first.pid}
    first.kill()
    controllers.wait_until(lambda: controllers.leads(second), "the second leads")
    controllers.wait_until(lambda: (second.pid, "list") in controllers.calls(), "and acts")


def test_a_dry_run_says_why_and_does_nothing(controllers: Controllers) -> None:
    controllers.world.publish("t1")
    run = subprocess.run(
        controllers.cli.command("atomic", "controller", "--provisioner", CLOUD, "--dry-run"),
        cwd=controllers.cli.directory,
        env={**controllers.environment, **LONG_TERM},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "demand of 1 and no host → add 1\n"), run.stderr
    assert not list(controllers.folder.glob("vm-*.json"))
    assert controllers.world.store.terms.look(TERM) is None


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--provisioner", CLOUD, "--once"), 0, ""),
        (("--provisioner", f"{CLOUD}:broken", "--once"), 1, "degraded"),
        (("--provisioner", f"{CLOUD}:broken", "--dry-run"), 1, "no cloud today"),
        (("--provisioner", CLOUD, "--dry-run"), 0, "nothing to do"),
        (("--provisioner", CLOUD, "--dry-run", "--json"), 0, '"reasons": ['),
        (("--provisioner", CLOUD, "--min-hosts", "5", "--max-hosts", "2"), 1, "max_hosts must be at least"),
        (("--provisioner", "no.such.module"), 1, "cannot be imported"),
        (("--provisioner", CLOUD, "--idle-drain", "soon"), 64, "not a valid integer"),
        ((), 64, "--provisioner"),
    ],
)
def test_how_a_controller_ends(controllers: Controllers, words: tuple[str, ...], code: int, said: str) -> None:
    run = controllers.cli("controller", *words, env={**controllers.environment, **LONG_TERM})
    assert run.returncode == code, run.stderr
    assert said in run.stdout + run.stderr
    assert [name for _, name in controllers.calls()] == (["list"] if code == 0 else [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Error (missing-cli): the list command /opt/nope/list cannot be started"),
        (("--json",), '"code": "missing-cli"'),
    ],
)
def test_a_dry_run_says_the_code_of_an_error(controllers: Controllers, words: tuple[str, ...], said: str) -> None:
    path = controllers.folder / "fleet.json"
    path.write_text('{"kind": "command", "up": ["up"], "down": ["down"], "list": ["/opt/nope/list"]}')
    run = controllers.cli(
        "controller", "--provisioner", str(path), "--dry-run", *words, env={**controllers.environment, **LONG_TERM}
    )
    assert run.returncode == 1
    assert said in run.stderr


@pytest.mark.parametrize(("words", "warned"), [((), True), (("--max-hosts", "1"), False)])
def test_a_fleet_of_several_machines_is_warned_of_a_database_that_they_cannot_open(
    controllers: Controllers, words: tuple[str, ...], warned: bool
) -> None:
    run = controllers.cli(
        "controller", "--provisioner", CLOUD, "--once", *words, env={**controllers.environment, **LONG_TERM}
    )
    sqlite = controllers.world.store.dialect == "sqlite"
    assert ("hosts on other machines cannot open" in run.stderr) == (sqlite and warned)
    assert run.returncode == 0


def test_one_tick_of_a_second_controller_does_nothing_while_the_first_leads(controllers: Controllers) -> None:
    first = controllers.start(**LONG_TERM)
    controllers.wait_until(lambda: controllers.leads(first), "the first leads")
    run = controllers.cli(
        "controller", "--provisioner", CLOUD, "--once", "--json", env={**controllers.environment, **LONG_TERM}
    )
    assert run.returncode == 0, run.stderr
    assert [json.loads(line)["event"] for line in run.stdout.splitlines()] == ["controller-standby", "stopped"]
    assert {pid for pid, _ in controllers.calls()} <= {first.pid}


def test_a_controller_does_not_begin_without_tables(tmp_path: Path, broker_url: str) -> None:
    run = project(tmp_path, broker_url)("controller", "--provisioner", CLOUD)
    assert run.returncode == 1
    assert "migrate" in run.stderr
