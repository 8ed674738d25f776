"""Hosts share what there is: nobody sits on messages that another one could run."""

from __future__ import annotations

from tests.support.workers import Fleet


def test_short_tasks_make_a_host_look_ahead_and_long_ones_make_it_give_back(slow_fleet: Fleet) -> None:
    fleet = slow_fleet
    busy = fleet.worker("busy").start()
    for number in range(200):
        fleet.send("note", f"n{number}")
    fleet.wait_done(200)
    for number in range(12):
        fleet.send("gate", f"g{number}", str(fleet.directory))
    fleet.wait_until(lambda: list(fleet.directory.glob("g*.begun.*")), what="a gate has begun")
    fleet.wait_until(
        lambda: len(fleet.running()) == 1,
        what="the busy host holds no more than it runs",
    )
    idle = fleet.worker("idle", slots=4).start()
    idle.wait_line("claimed", count=4)
    fleet.wait_until(lambda: len(list(fleet.directory.glob("g*.begun.*"))) == 5, what="five gates have begun")
    for number in range(12):
        fleet.open_gate(f"g{number}")
    rows = fleet.wait_done(212)
    assert sorted(rows) == sorted([*(f"n{n}" for n in range(200)), *(f"g{n}" for n in range(12))])
    assert not busy.events("released", outcome="crashed")


def test_a_host_that_looks_ahead_for_nothing_gives_back_what_it_has(slow_fleet: Fleet) -> None:
    fleet = slow_fleet
    busy = fleet.worker("busy").start()
    for number in range(100):
        fleet.send("note", f"n{number}")
    fleet.send("gate", "g", str(fleet.directory))
    for number in range(100, 200):
        fleet.send("note", f"n{number}")
    fleet.begun("g")
    fleet.wait_until(
        lambda: len(fleet.running()) == 1,
        what="the busy host holds no more than it runs",
    )
    fleet.worker("idle").start()
    fleet.wait_done(200)
    fleet.open_gate("g")
    assert sorted(fleet.wait_done(201)) == sorted(["g", *(f"n{number}" for number in range(200))])
    fleet.wait_until(lambda: not fleet.unfinished(), what="all is settled")
    assert not busy.events("lost")


def test_two_hosts_run_every_task_once(fleet: Fleet) -> None:
    gates = [f"g{number}" for number in range(4)]
    for name in gates:
        fleet.send("gate", name, str(fleet.directory))
    for number in range(300):
        fleet.send("note", f"n{number}")
    hosts = [fleet.worker(name, slots=2).start() for name in ("first", "second")]
    for name in gates:  # neither host has room for more than two of them
        fleet.begun(name)
    for name in gates:
        fleet.open_gate(name)
    fleet.wait_done(304)
    fleet.wait_until(lambda: not fleet.unfinished(), what="all is settled")
    assert sorted(fleet.ledger.rows()) == sorted([*gates, *(f"n{number}" for number in range(300))])
    assert all(host.events("claimed") for host in hosts)
