"""What a task's body publishes goes out at once, or waits for its success if the task says so."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from celery import Signature

from tests.results.conftest import NewFleet, signature
from tests.support.workers import HASTY, Fleet

Sign = Callable[..., Signature[Any]]

WAIT_S = 60
GONE_OUT = {"published 0": 1}


def _published(fleet: Fleet, call: Callable[[], Any]) -> Counter[str]:
    """Return which rows were added by what *call* started, once all has ended."""
    before = fleet.ledger.counts()
    call()
    fleet.wait_until(lambda: not fleet.unfinished(), WAIT_S)
    return fleet.ledger.counts() - before


@pytest.mark.parametrize("how", ["succeed", "fail", "ignore", "replace", "unserializable"])
def test_what_a_body_publishes_goes_out_however_it_ends(serving: Fleet, s: Sign, how: str) -> None:
    assert _published(serving, s("publishing", how).delay) == GONE_OUT


@pytest.mark.parametrize(
    ("how", "published"),
    [
        ("succeed", GONE_OUT),
        ("fail", {}),
        ("ignore", {}),
        ("retry", {"published 1": 1}),
        ("replace", GONE_OUT),
        ("unserializable", {}),
    ],
)
def test_it_waits_for_success_if_the_task_says_so(serving: Fleet, s: Sign, how: str, published: dict[str, int]) -> None:
    assert _published(serving, s("publishing_on_success", how).delay) == published


def test_it_goes_out_before_the_end_unless_the_task_says_otherwise(new_fleet: NewFleet) -> None:
    fleet = new_fleet()
    for name in ("publishing_gate", "publishing_gate_on_success"):
        signature(fleet, name, name, str(fleet.directory)).delay()
    fleet.worker(slots=3).start()
    for name in ("publishing_gate", "publishing_gate_on_success"):
        fleet.wait_until(lambda name=name: (fleet.directory / f"{name}.begun").exists())  # type: ignore[misc]
    fleet.wait_until(lambda: fleet.ledger.rows() == ["by publishing_gate"])
    fleet.open_gate("publishing_gate_on_success")
    fleet.wait_until(lambda: fleet.ledger.counts()["by publishing_gate_on_success"] == 1)
    fleet.open_gate("publishing_gate")


def test_a_thread_of_a_task_publishes_at_once(serving: Fleet, s: Sign) -> None:
    assert _published(serving, s("publishing_thread").delay) == {"from a thread": 1}


def test_a_task_that_rejects_itself_has_failed(s: Sign) -> None:
    result = s("rejecting").delay()
    assert "on purpose" in str(result.get(timeout=WAIT_S, propagate=False))
    assert result.failed()


def test_progress_is_seen_while_the_task_runs(serving: Fleet, s: Sign) -> None:
    result = s("progress", 3, str(serving.directory)).delay()
    seen = []
    for step in range(3):
        serving.wait_until(lambda step=step: result.info == {"step": step})  # type: ignore[misc]
        seen.append(result.state)
        (serving.directory / f"go-{step}").touch()
    assert result.get(timeout=WAIT_S) == "done"
    assert seen == ["PROGRESS"] * 3


def test_a_task_that_was_started_says_so(new_fleet: NewFleet) -> None:
    fleet = new_fleet(conf={"task_track_started": True})
    fleet.worker().start()
    result = signature(fleet, "gate", "a", str(fleet.directory)).delay()
    fleet.gate("a")
    assert result.state == "STARTED"
    fleet.open_gate("a")
    assert result.get(timeout=WAIT_S) == "a"


def test_progress_is_refused_of_who_has_lost_its_lease(new_fleet: NewFleet) -> None:
    fleet = new_fleet()
    result = signature(fleet, "gated_state", "g", str(fleet.directory)).delay()
    frozen = fleet.worker(
        "frozen", pool="threads", env=HASTY
    ).start()  # a thread goes on, whatever becomes of its lease
    fleet.gate("g")
    frozen.freeze()
    fleet.worker("heir").start()
    fleet.gate("g", fence=2)
    fleet.open_gate("g")
    assert result.get(timeout=WAIT_S) == "2"

    frozen.signal(signal.SIGCONT)
    frozen.wait_line("lost")
    fleet.wait_until(lambda: "recording its state PROGRESS" in frozen.log)
    assert fleet.ledger.rows() == ["g 2"]
    assert fleet.app.AsyncResult(result.id).state == "SUCCESS"
