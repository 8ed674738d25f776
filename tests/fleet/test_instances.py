"""Drained instances that vanish and come back: real workers, a controller for each tick, a platform in a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.support.workers import APPLICATION, LONG_TERM, ROOT, Fleet, WorkerProcess

CLOUD = "tests.fleet.folder_cloud"


class Site:
    """Workers on one database, and the platform that lists what they run on."""

    def __init__(self, url: str, directory: Path) -> None:
        self.fleet, self.folder = Fleet(url, directory), directory / "cloud"
        self.folder.mkdir()
        self._numbers = iter(range(100))

    def instance(self, name: str, state: str = "running", host_id: str | None = None) -> Path:
        """Let the platform list an instance."""
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({"id": name, "state": state, "host_id": host_id}))
        return path

    def worker(self, provider_id: str | None = None) -> WorkerProcess:
        """Start a worker that has never run before: on a fresh disk, so with a new host id."""
        name = f"w{next(self._numbers)}"
        options = ("--provider-id", provider_id) if provider_id else ()
        env = {"ATOMIC_STATE_DIR": str(self.fleet.directory / name)}
        return self.fleet.worker(name, options=options, env=env).start()

    def controller(self, *words: str) -> subprocess.Popen[str]:
        """Start a controller for one tick."""
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", APPLICATION, "atomic", "controller", "--once", "--json"),
                *("--provisioner", CLOUD, "--max-hosts", "1", "--workers-per-host", "1", *words),
            ],
            cwd=self.fleet.directory,
            env={
                **os.environ,
                **self.fleet.env,
                **LONG_TERM,
                "ATOMIC_TEST_CLOUD": str(self.folder),
                "PYTHONPATH": str(ROOT),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def tick(self, *words: str) -> list[dict[str, Any]]:
        """Let a new controller take over for one tick; return what it has said."""
        controller = self.controller(*words)
        said, _ = controller.communicate(timeout=120)
        assert controller.returncode == 0, said
        return [json.loads(line) for line in said.splitlines() if line.startswith("{")]

    def reasons(self) -> list[str]:
        """Return why the last controller did what it did."""
        kept = self.fleet.store.controllers.load("fleet-controller")
        assert kept is not None
        return list(kept.plan["reasons"])

    @property
    def drains(self) -> dict[str, int]:
        """How many listings in a row each drained instance has been missing from."""
        return {drain.instance: drain.missed_listings for drain in self.fleet.store.hosts.drains()}


@pytest.fixture
def site(postgres_url: str, tmp_path: Path) -> Iterator[Site]:
    made = Site(postgres_url, tmp_path)
    yield made
    made.fleet.close()


def takes_nothing(site: Site, worker: WorkerProcess) -> None:
    """Whether a worker ends by itself and leaves alone what waits."""
    assert worker.wait() == 0
    worker.wait_line("drained")
    assert site.fleet.ledger.rows() == []
    assert {(view.state, view.fence) for view in site.fleet.store.reads.messages()} == {("ready", 0)}


def test_what_restarts_on_a_drained_instance_takes_nothing_until_the_platform_has_removed_it(site: Site) -> None:
    """Whoever leads, while it is deleted, and when one listing lacks it; a new instance of that name serves."""
    fleet = site.fleet
    first = site.worker("vm-1")
    first.wait_line("ready")
    vm = site.instance("vm-1")
    site.tick()
    fleet.store.hosts.drain("vm-1", "scale down", "somebody")
    assert first.wait() == 0
    fleet.send("note", "served")

    site.instance("vm-1", "draining")  # it is being deleted, which takes the platform a while
    site.tick()
    takes_nothing(site, site.worker("vm-1"))
    vm.unlink()  # one listing lacks it
    site.tick()
    assert site.drains == {"vm-1": 1}
    takes_nothing(site, site.worker("vm-1"))
    site.instance("vm-1", "draining")
    site.tick()
    assert site.drains == {"vm-1": 0}
    takes_nothing(site, site.worker("vm-1"))

    vm.unlink()
    site.tick()
    site.tick()
    takes_nothing(site, site.worker("vm-1"))
    assert site.drains == {"vm-1": 2}
    assert [line["instance"] for line in site.tick() if line["event"] == "drain-forgotten"] == ["vm-1"]
    site.instance("vm-1")
    site.worker("vm-1")
    assert fleet.wait_done(1) == ["served"]


def test_a_drain_outlasts_an_instance_that_is_listed_no_more_while_its_worker_still_runs(site: Site) -> None:
    fleet = site.fleet
    fleet.send("gate", "g", str(fleet.directory))
    worker = site.worker("vm-1")
    fleet.gate("g")
    vm = site.instance("vm-1")
    site.tick()
    fleet.store.hosts.drain("vm-1", "scale down", "somebody")
    fleet.send("note", "served")
    worker.wait_line("draining")
    vm.unlink()
    for _ in range(4):
        site.tick()
    assert site.drains == {"vm-1": 0}
    fleet.open_gate("g")
    assert worker.wait() == 0
    assert fleet.ledger.rows() == ["g"], "it took nothing more"
    for _ in range(3):
        site.tick()
    assert site.drains == {}


def test_a_drained_instance_is_kept_while_a_host_of_no_known_instance_holds_a_message(site: Site) -> None:
    """Its worker does not say on which instance it runs, and came back under a new id: it may well run on this one."""
    fleet = site.fleet
    worker = site.worker()
    vm = site.instance("vm-1", host_id=worker.wait_line("ready")["host"])
    fleet.store.hosts.drain("vm-1", "scale down", "somebody")
    site.tick()
    assert worker.wait() == 0, "the host that was listed on it was drained with it"
    fleet.send("gate", "g", str(fleet.directory))
    restarted = site.worker()
    fleet.gate("g")

    site.tick()
    assert vm.exists()
    assert site.reasons() == ["vm-1 is kept: a host of no known instance holds a message, and may be on it"]
    assert fleet.running(), "nobody took it away"

    fleet.open_gate("g")
    fleet.wait_done(1)
    wait_until(lambda: not fleet.running())
    said = site.tick()
    assert not vm.exists()
    assert "removed" in {line["event"] for line in said}
    restarted.signal(signal.SIGTERM)
    assert restarted.wait() == 0


def test_what_registers_on_an_instance_while_it_is_removed_takes_nothing(site: Site) -> None:
    vm = site.instance("vm-1", "failed")
    hold = site.folder / "hold.drain"
    hold.touch()
    controller = site.controller()
    wait_until(lambda: list(site.folder.glob("came.drain.*")), 60, lambda: str(site.drains))
    site.fleet.send("note", "served")
    takes_nothing(site, site.worker("vm-1"))
    hold.unlink()
    controller.communicate(timeout=120)
    assert not vm.exists()
    assert site.drains == {"vm-1": 0}


def test_an_instance_that_is_called_failed_is_kept_while_its_worker_reports_or_holds_a_message(
    site: Site,
) -> None:
    fleet = site.fleet
    fleet.send("gate", "g", str(fleet.directory))
    worker = site.worker("vm-1")
    fleet.gate("g")
    vm = site.instance("vm-1", "failed")
    site.tick()
    assert vm.exists()
    worker.signal(signal.SIGKILL)
    stale_ms = round(fleet.store.settings.stale_after_s * 1000)
    fleet.wait_until(lambda: fleet.store.loads.slots(stale_ms).hosts == 0, what="it is silent")
    assert fleet.store.loads.holders(), "nobody has reclaimed its message"
    site.tick()
    assert vm.exists()
    fleet.wait_until(lambda: fleet.store.loads.work(None, 10).lapsed, what="its lease is over")
    site.tick()
    assert vm.exists(), "it counts as held until somebody reclaims it"
    fleet.store.messages.reclaim()
    site.tick()
    assert not vm.exists()
    assert site.drains == {"vm-1": 0}
