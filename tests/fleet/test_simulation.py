"""The real plan over a virtual day: what it costs, whether it flaps, whether it ever harms a busy host."""

from __future__ import annotations

import time
from typing import Literal

import pytest

from atomic_celery.fleet.policy import Policy
from atomic_celery.store.records import NewMessage
from atomic_celery.testing import traces
from atomic_celery.testing.simulation import World, simulate
from atomic_celery.testing.traces import DAY_S
from tests.store.desk import Desk

HOSTS, SLOTS, TASK_S = 100, 4, 60.0
POLICY = Policy(max_hosts=HOSTS, workers_per_host=SLOTS)
SHIPPED = traces.shipped(HOSTS, SLOTS, TASK_S)
HOW: tuple[Literal["spread"], Literal["pack"]] = ("spread", "pack")
MISHAPS = {"boot_failure_share": 0.05, "interruptions_an_hour": 0.2}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_day_costs_at_most_15_percent_more_than_the_least_that_is_possible(name: str) -> None:
    report = simulate(SHIPPED[name], POLICY, World(), for_s=DAY_S)
    assert 0 <= report.overhead <= 0.15, f"{report.host_hours:.0f} of {report.clairvoyant_hours:.0f} host hours"
    assert max(sample.hosts for sample in report.samples) <= HOSTS


@pytest.mark.parametrize("dispatch", ["pack", "spread"])
def test_a_steady_load_reverses_nothing_more_than_once_in_ten_minutes(dispatch: Literal["pack", "spread"]) -> None:
    report = simulate(SHIPPED["steady"], POLICY, World(dispatch=dispatch), for_s=DAY_S)
    assert report.reversals_in_any(600) <= 1


@pytest.mark.parametrize("name", SHIPPED)
def test_work_that_is_spread_costs_more_and_harms_no_host(name: str) -> None:
    """The simulation itself fails when a plan would remove a host that is there, or holds something."""
    for_s = DAY_S / 2
    spread, packed = (simulate(SHIPPED[name], POLICY, World(dispatch=how), for_s=for_s) for how in HOW)
    arrived = sum(SHIPPED[name](second) for second in range(int(for_s)))
    assert spread.completed + spread.unfinished == pytest.approx(arrived, abs=1)
    assert spread.host_hours >= packed.host_hours
    assert spread.longest_wait_s <= packed.longest_wait_s
    assert max(sample.hosts for sample in spread.samples) <= HOSTS


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SHIPPED)
def test_with_hosts_that_do_not_boot_or_vanish_all_work_is_done_and_no_busy_host_removed(name: str, seed: int) -> None:
    """The simulation itself fails when a plan would remove a host that is there, or holds something."""
    for_s = DAY_S / 4
    report = simulate(SHIPPED[name], POLICY, World(**MISHAPS, seed=seed), for_s=for_s)  # type: ignore[arg-type]
    arrived = sum(SHIPPED[name](second) for second in range(int(for_s)))
    assert report.completed + report.unfinished == pytest.approx(arrived, abs=1)
    assert report.completed >= 0.9 * arrived
    assert max(sample.hosts for sample in report.samples) <= HOSTS


def test_the_same_seed_gives_the_same_run() -> None:
    world = World(**MISHAPS, dispatch="spread", seed=7)  # type: ignore[arg-type]
    first, second = (simulate(SHIPPED["bursts"], POLICY, world, for_s=7200) for _ in range(2))
    assert first == second


def test_an_empty_day_costs_nothing() -> None:
    report = simulate(traces.steady(0), POLICY, World(), for_s=3600)
    assert (report.host_hours, report.overhead, report.completed) == (0, 0, 0)


def test_least_hosts_are_kept() -> None:
    report = simulate(traces.steady(0), Policy(min_hosts=3), World(), for_s=3600)
    assert report.samples[-1].hosts == 3
    assert report.reversals == ()


@pytest.mark.benchmark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dispatch", ["pack", "spread"])
def test_a_day_of_a_thousand_hosts(dispatch: Literal["pack", "spread"]) -> None:
    """Prints how long it takes; it is meant to be a minute at most."""
    began_s = time.process_time()
    report = simulate(traces.daily(36.0), Policy(max_hosts=1000), World(dispatch=dispatch), for_s=DAY_S)
    print(f"24 h of 1000 hosts, {dispatch}: {time.process_time() - began_s:.0f} s of a processor (limit 60 s)")
    assert 900 <= max(sample.hosts for sample in report.samples) <= 1000


def test_work_gathers_on_few_hosts(postgres_desk: Desk) -> None:
    """What `dispatch="pack"` stands for: of those that sleep the same ones are woken first, the others get idle."""
    desk, queues = postgres_desk, postgres_desk.store.queues
    for name in ("h3", "h1", "h4", "h2"):
        queues.arm(name, [desk.queue_id], 60_000)
    woken = []
    for _ in range(4):
        desk.messages.publish([NewMessage(desk.queue_id, "work")])
        woken.append(_asleep(desk))
        queues.arm("h1", [desk.queue_id], 60_000)
    assert woken == [{"h2", "h3", "h4"}] * 4


def _asleep(desk: Desk) -> set[str]:
    database = desk.store._database
    look = database.statements.script("asleep", "SELECT holder FROM atomic_waiter")
    return {row[0] for row in database.run(look).rows}
