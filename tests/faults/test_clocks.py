"""Wall clocks that are wrong by many leases, from the start or suddenly: only the database's says who holds what.

On PostgreSQL only: with SQLite the machine that runs the worker is the database's too, and has one clock.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.faults.scene import LEASE_S, LONG, Scene
from tests.faults.skew import Skew
from tests.support.freezing import freeze
from tests.support.proxy import Proxy
from tests.worker.test_losing import gone

SKEW_S = 300
RECOVERY_MS = 5_000


class Skews(NamedTuple):
    """The clocks of two machines."""

    first: Skew
    second: Skew


@pytest.fixture(params=[+SKEW_S, -SKEW_S], ids="{:+d}s".format)
def skews(request: pytest.FixtureRequest, tmp_path: Path) -> Skews:
    """The first machine's clock is wrong by so much, the second's by as much the other way."""
    return Skews(Skew(tmp_path / "first.clock", request.param), Skew(tmp_path / "second.clock", -request.param))


@pytest.fixture
def skew(tmp_path: Path) -> Skew:
    """A clock that is right until it is set to another time."""
    return Skew(tmp_path / "clock")


def took_over(scene: Scene, task_id: str) -> tuple[int, int, int]:
    """Return when the first lease ended, when it was taken away and when the next one was granted; database's time."""
    [ended, _] = scene.witness.of(task_id, "let go")
    _, second = scene.witness.of(task_id, "granted")
    assert ended.lease_until_ms is not None
    return ended.lease_until_ms, ended.at_ms, second.at_ms


def are_wrong(scene: Scene, name: str) -> bool:
    """Whether the clocks of the two hosts that ran a task were as wrong as they should have been."""
    first, second = (scene.clock_error_s(name, fence) for fence in (1, 2))
    return abs(first + second) < SKEW_S / 10 and abs(abs(first - second) - 2 * SKEW_S) < SKEW_S / 10


def test_under_skew_a_killed_host_s_task_runs_elsewhere_neither_early_nor_late(
    postgres_scene: Scene, skews: Skews
) -> None:
    """Row 13 with row 2."""
    scene = postgres_scene
    victim = scene.worker("victim", env=skews.first.env)
    task_id = scene.send("g")
    scene.begun("g")
    scene.successor(**skews.second.env)
    killed_ms = scene.kill(victim)
    scene.begun("g", fence=2)
    scene.open("g")
    scene.ends_well()
    lease_until_ms, taken_ms, granted_ms = took_over(scene, task_id)
    assert lease_until_ms <= taken_ms <= granted_ms <= killed_ms + LEASE_S * 1000 + RECOVERY_MS
    assert are_wrong(scene, "g")
    assert scene.fleet.ledger.rows() == ["g 2"]


def test_under_skew_a_frozen_host_is_refused(postgres_scene: Scene, skews: Skews) -> None:
    """Row 13 with row 5."""
    scene = postgres_scene
    victim = scene.worker("victim", env=skews.first.env)
    task_id = scene.send("g")
    child = scene.begun("g")
    freeze(victim.pid)
    scene.successor(**skews.second.env)
    scene.begun("g", fence=2)
    assert gone(child), "its child has ended itself, by its own clocks"
    victim.signal(signal.SIGCONT)
    victim.wait_line("lost", child=task_id, fence=1)
    scene.open("g")
    scene.ends_well()
    lease_until_ms, taken_ms, _ = took_over(scene, task_id)
    assert lease_until_ms <= taken_ms
    assert are_wrong(scene, "g")
    assert scene.fleet.ledger.rows() == ["g 2"]


def test_under_skew_a_host_that_leaves_hands_over_without_waiting_for_a_lease(
    postgres_scene: Scene, skews: Skews
) -> None:
    """Row 13 with row 1b."""
    scene = postgres_scene
    leaving = scene.worker("leaving", env={**LONG, **skews.first.env, "ATOMIC_SHUTDOWN_TIMEOUT": "2"})
    task_id = scene.send("g")
    scene.begun("g")
    scene.successor(**skews.second.env)
    leaving.signal(signal.SIGTERM)
    assert leaving.wait() == 0
    scene.begun("g", fence=2)
    scene.open("g")
    scene.ends_well()
    lease_until_ms, taken_ms, _ = took_over(scene, task_id)
    assert taken_ms < lease_until_ms
    assert are_wrong(scene, "g")
    assert scene.fleet.ledger.rows() == ["g 2"]


def test_a_clock_set_forward_ends_the_attempt_and_nobody_has_the_task_before_its_lease_is_over(
    postgres_scene: Scene, skew: Skew
) -> None:
    """Row 13+: the host believes that its lease is over."""
    scene = postgres_scene
    worker = scene.worker("w", env=skew.env)
    task_id = scene.send("g")
    child = scene.begun("g")
    skew.step(SKEW_S)
    scene.wait_until(lambda: gone(child), "the child ends at its fence")
    worker.wait_line("lost", child=task_id, fence=1, reason="expired")
    scene.begun("g", fence=2)
    assert scene.clock_error_s("g", 2) - scene.clock_error_s("g", 1) > SKEW_S / 2
    scene.open("g")
    scene.ends_well()
    lease_until_ms, taken_ms, _ = took_over(scene, task_id)
    assert lease_until_ms <= taken_ms
    assert scene.fleet.ledger.rows() == ["g 2"]


def test_a_clock_set_back_costs_nothing_and_makes_no_lease_longer(
    distant_scene: Scene, proxy: Proxy, skew: Skew
) -> None:
    """Row 13+: renewals go on as before; when they cannot any more, the monotonic clock ends the attempt."""
    scene = distant_scene
    victim = scene.worker("victim", env=skew.env)
    task_id = scene.send("g")
    child = scene.begun("g")
    skew.step(-SKEW_S)
    stepped_ms = scene.store.now_ms()
    scene.wait_until(
        lambda: scene.fleet.running()[0].lease_until_ms > stepped_ms + 2 * LEASE_S * 1000, "a lease has passed"
    )
    assert [view.fence for view in scene.fleet.running()] == [1]
    assert not gone(child)
    scene.successor()
    proxy.blackhole()
    scene.begun("g", fence=2)
    assert gone(child), "it ended a margin before its lease"
    victim.wait_line("lost", child=task_id, fence=1, reason="expired")
    proxy.restore()
    scene.send("h")
    scene.begun("h")
    assert scene.clock_error_s("h") < -SKEW_S / 2
    scene.open("g")
    scene.open("h")
    scene.ends_well()
    assert sorted(scene.fleet.ledger.rows()) == ["g 2", "h 1"]
