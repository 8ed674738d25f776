"""Several teams in one database: each has tables of its own, and nothing crosses from one to another."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from atomic_celery.store.doorbell import channel
from tests.support.workers import Fleet

OURS, THEIRS = "team", f"team_{'b' * 19}"
"""Two that begin alike; the second is as long as one can be."""


@pytest.fixture
def fleets(database_url: str, tmp_path: Path) -> Iterator[tuple[Fleet, Fleet]]:
    """Two fleets in one database."""
    with ExitStack() as stack:
        made = []
        for prefix in (OURS, THEIRS):
            (tmp_path / prefix).mkdir()
            # kombu tells the connections of two apps in one process apart by their options, not by their apps.
            settings, conf = {"ATOMIC_PREFIX": prefix}, {"broker_transport_options": {"atomic_prefix": prefix}}
            fleet = Fleet(database_url, tmp_path / prefix, settings=settings, conf=conf)
            made.append(stack.enter_context(closing(fleet)))
        yield made[0], made[1]


def unfinished(fleet: Fleet) -> set[str | None]:
    return {message.task_id for message in fleet.store.reads.messages()}


def test_nothing_crosses_from_one_fleet_to_another_in_the_same_database(fleets: tuple[Fleet, Fleet]) -> None:
    ours, theirs = fleets
    for fleet, who in ((ours, "ours"), (theirs, "theirs")):  # the same queue, and the same task ids
        for number in range(3):
            fleet.send("note", f"{who}-{number}", task_id=f"id-{number}")
    ours.worker("ours").start().wait_line("ready")

    ours.wait_until(lambda: not unfinished(ours))
    assert unfinished(theirs) == {"id-0", "id-1", "id-2"}
    assert sorted(ours.ledger.rows()) == ["ours-0", "ours-1", "ours-2"]

    [host] = ours.store.hosts.list()
    assert theirs.store.hosts.list() == []
    theirs.store.hosts.drain(host.id, "a drain of the other fleet", "a test")
    theirs.store.revocations.add(["id-9"], 60_000)
    ours.send("note", "ours-9", task_id="id-9")
    ours.wait_until(lambda: not unfinished(ours))
    assert "ours-9" in ours.ledger.rows()

    other = theirs.worker("theirs").start()
    other.wait_line("ready")
    theirs.wait_until(lambda: not unfinished(theirs))
    other.signal(signal.SIGTERM)
    assert other.wait() == 0

    assert [each.id for each in ours.store.hosts.list()] == [host.id]
    kinds_before = [event.kind for event in ours.store.events.list()]
    theirs.store.events.record("scale-up")
    assert [event.kind for event in ours.store.events.list()] == kinds_before


def test_the_tables_of_one_fleet_can_be_there_without_the_other_s(fleets: tuple[Fleet, Fleet]) -> None:
    ours, theirs = fleets
    ours.store.schema._exec("note", name="schema_version", number=99)
    assert theirs.store.schema.version() == theirs.store.schema.target


def test_each_fleet_has_channels_of_its_own() -> None:
    assert channel(OURS, "holder") != channel(THEIRS, "holder")
    assert len(channel(THEIRS, "holder").encode()) <= 63


def test_a_killed_worker_of_one_fleet_is_nothing_to_the_other(fleets: tuple[Fleet, Fleet]) -> None:
    hosts = []
    for fleet in fleets:
        killed = fleet.worker("killed").start()
        fleet.send("gate", "g", str(fleet.directory), task_id="id")  # the same fence of the same task
        fleet.gate("g")
        hosts.append(killed)
    ours, theirs = fleets
    hosts[0].signal(signal.SIGKILL)
    ours.worker("next").start()
    ours.gate("g", fence=2)
    ours.open_gate("g")
    ours.wait_until(lambda: not unfinished(ours), what="ours has run again")
    assert [(running.task_id, running.fence) for running in theirs.running()] == [("id", 1)]
    theirs.open_gate("g")
    theirs.wait_until(lambda: not unfinished(theirs), what="theirs goes on")
    assert not hosts[1].events("lost")
    assert sorted(path.name for path in theirs.directory.glob("g.begun.*")) == ["g.begun.1"]
