"""A real controller, real workers on this machine, a real database: from nothing to the most hosts and back to none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.local_fleet import LocalFleet
from tests.fleet.picture import draw

PICTURE = "ATOMIC_FLEET_PICTURE"


@pytest.fixture
def local_fleet(postgres_url: str, tmp_path: Path) -> Iterator[LocalFleet]:
    fleet = LocalFleet(postgres_url, tmp_path, max_hosts=2, slots=1)
    yield fleet
    fleet.close()


@pytest.mark.timeout(300)
def test_a_busy_host_is_never_drained_and_an_idle_one_is_and_goes(local_fleet: LocalFleet) -> None:
    fleet = local_fleet
    for name in ("one", "two"):
        fleet.fleet.send("gate", name, str(fleet.fleet.directory))
    fleet.start()
    begun = {name: fleet.fleet.directory / f"{name}.begun.1" for name in ("one", "two")}
    fleet.wait_until(lambda: all(path.exists() for path in begun.values()), "both run")
    assert len(fleet.instances) == 2
    fleet.wait_until(lambda: not any(host.idle_since_ms for host in fleet.store.hosts.list()), "both say they are busy")
    holders = {view.holder: view.task_id for view in fleet.fleet.running()}
    fleet.fleet.open_gate("one")
    fleet.wait_until(lambda: len(fleet.instances) == 1, "the idle one is gone")
    [view] = fleet.fleet.running()
    [host] = [host for host in fleet.store.hosts.list() if host.id in holders]
    assert host.id == view.holder
    assert (host.draining_ms, host.provider_id) == (None, fleet.instances[0])
    fleet.fleet.open_gate("two")
    fleet.wait_until(lambda: not fleet.instances and not fleet.hosts, "all are gone")
    assert sorted(fleet.fleet.ledger.rows()) == ["one", "two"]
    assert fleet.end() == 0
    assert not fleet.store.reads.messages()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_two_thousand_tasks_in_bursts_from_no_host_to_the_most_and_back(postgres_url: str, tmp_path: Path) -> None:
    """Also draws the run, if `ATOMIC_FLEET_PICTURE` says where to."""
    fleet = LocalFleet(postgres_url, tmp_path, max_hosts=4, slots=4, idle_drain_ms=5000)
    try:
        fleet.start()
        fleet.publish(0, 1000)
        fleet.wait_until(lambda: len(fleet.fleet.ledger.rows()) >= 500, "half of the first burst is done", 200)
        for first in (1000, 1250, 1500):
            fleet.publish(first, 250)
        fleet.wait_until(lambda: len(fleet.fleet.ledger.rows()) >= 1750, "three bursts are done", 200)
        fleet.publish(1750, 250)
        fleet.wait_until(lambda: len(fleet.fleet.ledger.rows()) >= 2000, "all is done", 200)
        fleet.wait_until(lambda: not fleet.instances and not fleet.hosts, "all hosts are gone", 200)
        counts = fleet.fleet.ledger.counts()
        assert counts == {f"doze {number}": 1 for number in range(2000)}
        assert max(seen.hosts for seen in fleet.seen) == 4
        assert fleet.end() == 0
        if where := os.environ.get(PICTURE):
            Path(where).write_text(draw(fleet.seen))
    finally:
        fleet.close()
