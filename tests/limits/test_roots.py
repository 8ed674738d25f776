"""Roots as applications and operators use them, with real workers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from celery import chord, group
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult

import atomic_celery
from atomic_celery import Budget, Root, errors
from tests.limits.conftest import APPLICATION
from tests.limits.test_workers import most_at_once
from tests.support.workers import ROOT, Fleet


def signature(fleet: Fleet, name: str, *args: Any) -> Any:
    """Return a call of a task of the application."""
    return fleet.app.signature(f"{APPLICATION}.{name}", args=args)


def test_all_that_is_sent_in_a_root_s_block_is_its_own_and_no_more_run_than_may(fleet: Fleet) -> None:
    for name in ("w1", "w2"):
        fleet.worker(name, slots=3).start().wait_line("ready")

    with atomic_celery.root("import-42", max_running=2, labels={"team": "a"}, app=fleet.app) as root:
        for number in range(6):
            signature(fleet, "child", number).delay()
        atomic_celery.publish_many([signature(fleet, "child", 10 + number) for number in range(3)], app=fleet.app)
        signature(fleet, "parent", 3).delay()

    root.wait(60)
    rows = fleet.wait_done(24)
    assert most_at_once(rows) <= 2
    assert {row.split()[3] for row in rows} == {"import-42"}
    view = Root.get("import-42", app=fleet.app)
    assert view is not None
    assert (view.started, view.running, view.waiting, view.labels) == (13, 0, 0, {"team": "a"})
    assert root.progress().unfinished == 0


def test_a_canvas_is_sent_as_a_root(fleet: Fleet) -> None:
    fleet.worker(slots=3).start().wait_line("ready")
    root = Root("chords", app=fleet.app)
    root.set(max_running=2)
    header = group(signature(fleet, "child", number, 0.0) for number in range(3))

    result = root.apply_async(chord(header, fleet.app.signature(f"{APPLICATION}.child", kwargs={"seconds": 0.0})))

    result.get(timeout=60)
    assert {row.split()[-1] for row in fleet.wait_done(8)} == {"chords"}


def test_a_task_that_sends_a_great_many_children_keeps_no_other_root_waiting(fleet: Fleet) -> None:
    go = fleet.directory / "go"
    fleet.worker(slots=1).start().wait_line("ready")
    signature(fleet, "crowding", 700, str(go)).delay()
    fleet.wait_done(1)
    assert fleet.ledger.rows() == ["sent"]

    signature(fleet, "child", "other", 0.0).apply_async(root_id="other")
    go.touch()

    rows = fleet.wait_done(2 * 701 + 1)
    assert [row.split()[1] for row in rows[1:]].index("other") < 2 * 200


def test_a_paused_root_starts_nothing_and_goes_on(fleet: Fleet) -> None:
    root = Root("r", app=fleet.app)
    assert root.pause()
    results = [root.apply_async(signature(fleet, "child", number, 0.0)) for number in range(3)]
    other = signature(fleet, "child", 9, 0.0).delay()
    fleet.worker(slots=2).start().wait_line("ready")

    assert other.get(timeout=60) == 9
    assert root.state == "paused"
    assert root.progress().waiting == 3
    with pytest.raises(CeleryTimeoutError, match="3 messages of the root 'r' are unfinished"):
        root.wait(0.1)
    assert root.resume()
    assert [result.get(timeout=60) for result in results] == [0, 1, 2]


def test_a_cancelled_root_revokes_what_waits_and_kills_what_runs(fleet: Fleet) -> None:
    fleet.worker(slots=2).start().wait_line("ready")
    root = Root("r", app=fleet.app)
    root.set(max_running=2)
    deaf, listening = (root.apply_async(signature(fleet, "endless", listens)) for listens in (False, True))
    waiting = [root.apply_async(signature(fleet, "child", number)) for number in range(3)]
    fleet.wait_done(2)

    assert root.cancel(grace_s=0.5)

    for result in (deaf, *waiting):
        with pytest.raises(TaskRevokedError):
            AsyncResult(result.id, app=fleet.app).get(timeout=60)
    root.wait(60)
    assert "begin" not in " ".join(fleet.ledger.rows())
    assert fleet.app.AsyncResult(listening.id).state in ("SUCCESS", "REVOKED")
    assert [event.kind for event in fleet.store.events.list(root="r")] == ["root-cancelled", "root-changed"]


def test_what_runs_hears_that_its_root_is_cancelled_and_may_end(fleet: Fleet) -> None:
    fleet.worker().start().wait_line("ready")
    root = Root("r", app=fleet.app)
    result = root.apply_async(signature(fleet, "endless", True))
    fleet.wait_done(1)

    assert root.cancel(grace_s=60)

    assert result.get(timeout=60) == "listened"
    assert fleet.ledger.rows() == ["begun", "listened"]


def test_a_budget_is_kept_and_told_of(fleet: Fleet) -> None:
    with atomic_celery.root("r", max_running=1, budget=Budget(cost=10, warn_at_percent=50), app=fleet.app) as root:
        for _ in range(5):
            signature(fleet, "spender", 4.0).delay()
    fleet.worker(slots=2).start().wait_line("ready")

    assert fleet.wait_done(3) == ["spent 4.0"] * 3
    fleet.wait_until(lambda: root.state == "budget_exceeded" and root.progress().running == 0)
    fleet.wait_until(lambda: "root-budget-exceeded" in [event.kind for event in fleet.store.events.list(root="r")])
    assert len(fleet.ledger.rows()) == 3
    view = Root.get("r", app=fleet.app)
    assert view is not None
    assert (view.spent_cost, view.spent_tokens, view.waiting) == (12.0, 3, 2)

    root.set(max_running=1, budget=Budget(cost=100))
    fleet.wait_done(5)


@pytest.mark.parametrize(
    ("name", "arguments"), [("stubborn", ["retries"]), ("stubborn", ["crashes"]), ("stubborn_early", [])]
)
def test_progress_counts_children_and_not_attempts(fleet: Fleet, name: str, arguments: list[str]) -> None:
    """A budget of three lets three tasks run to their end, however often each of them begins."""
    children, times = 3, 2
    with atomic_celery.root("r", budget=Budget(children=children), app=fleet.app) as root:
        for _ in range(children):
            signature(fleet, name, times, *arguments).delay()
    fleet.worker(slots=2).start().wait_line("ready")

    def is_done() -> bool:
        seen = root.progress()
        assert seen.finished <= seen.started <= children
        return seen.unfinished == 0 and len(fleet.ledger.rows()) == children * (times + 1)

    fleet.wait_until(is_done, what="every child has tried as often as it should")
    seen = root.progress()
    assert (seen.started, seen.finished, seen.unfinished) == (children, children, 0)
    assert root.state == "budget_exceeded"


def test_operators_see_and_steer_roots(fleet: Fleet) -> None:
    def atomic(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "celery", "-A", fleet.application, "atomic", "roots", *arguments]
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **fleet.env}
        done = subprocess.run(command, cwd=fleet.directory, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    assert "import: set" in atomic("set", "import", "--max-running", "3", "--cost", "7.5")
    atomic("set", "import", "--max-running", "none", "--duration", "60")
    [root] = json.loads(atomic("list", "--json"))
    assert (root["max_running"], root["budget_cost"], root["budget_ms"]) == (None, 7.5, 60_000)
    assert "paused" in atomic("pause", "import")
    atomic("pause", "import", code=1)
    assert "paused" in atomic("list", "--state", "paused")
    assert "state            paused" in atomic("show", "import")
    assert "resumed" in atomic("resume", "import")
    assert "cancelled" in atomic("cancel", "import", "--grace", "0")
    assert "no root 'nobody'" in atomic("show", "nobody", code=1)
    assert "a number or 'none'" in atomic("set", "import", "--cost", "much", code=1)
    kinds = [event.kind for event in fleet.store.events.list(root="import")]
    assert kinds == ["root-cancelled", "root-resumed", "root-paused", "root-changed", "root-changed"]


def test_what_makes_no_sense_is_refused(fleet: Fleet) -> None:
    for wrong in ("", "a\0b"):
        with pytest.raises(errors.ConfigError, match="the id of a root"):
            Root(wrong, app=fleet.app)
    with pytest.raises(errors.ConfigError, match="max_running"):
        Root("r", app=fleet.app).set(max_running=0)
