"""Limits hold over real hosts, one of which is killed; what waits starts as soon as it may."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from itertools import pairwise

from celery import Celery

from tests.limits.conftest import APPLICATION
from tests.support.workers import HASTY, Fleet


def most_at_once(rows: Iterable[str]) -> int:
    """Return how many tasks ran at the same time at most, by what they wrote down themselves."""
    changes = []
    for row in rows:
        what, _, at_s, _ = row.split()
        changes.append((float(at_s), 1 if what == "begin" else -1))
    running, most = 0, 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def test_no_more_run_than_may_on_two_hosts(fleet: Fleet) -> None:
    for name in ("w1", "w2"):
        fleet.worker(name, slots=3).start().wait_line("ready")

    for number in range(14):
        fleet.app.tasks[f"{APPLICATION}.two_at_once"].delay(number)
    rows = fleet.wait_done(28)

    assert most_at_once(rows) <= 2
    fleet.wait_until(lambda: fleet.unfinished() == 0)


def test_each_key_has_its_own_limit(fleet: Fleet) -> None:
    for name in ("w1", "w2"):
        fleet.worker(name, slots=3).start().wait_line("ready")

    for number in range(5):
        for tenant in "abc":
            fleet.app.tasks[f"{APPLICATION}.one_a_tenant"].delay(tenant, number)
    rows = fleet.wait_done(30)

    for tenant in "abc":
        assert most_at_once(row for row in rows if row.split()[1].startswith(tenant)) == 1
    assert most_at_once(rows) > 1


def test_a_killed_host_neither_keeps_its_places_nor_lets_more_run(fleet: Fleet) -> None:
    waiting, go = fleet.app.tasks[f"{APPLICATION}.two_that_wait"], fleet.directory / "go"
    doomed = fleet.worker("doomed", slots=3, env=HASTY).start()
    doomed.wait_line("ready")
    for number in range(8):
        waiting.delay(number, str(go))
    fleet.wait_done(2)
    other = fleet.worker("other", slots=4).start()
    other.wait_line("ready")

    os.kill(doomed.pid, signal.SIGKILL)

    seen: list[int] = []

    def begun_elsewhere(count: int) -> bool:
        seen.append(len(fleet.running()))
        return sum(row.endswith(f" {other.pid}") for row in fleet.ledger.rows()) >= count

    fleet.wait_until(lambda: begun_elsewhere(2), 60.0)
    fleet.open_gate("go")
    fleet.wait_until(lambda: begun_elsewhere(16), 60.0)
    assert max(seen) == 2
    assert most_at_once(row for row in fleet.ledger.rows() if row.endswith(f" {other.pid}")) == 2


def test_no_more_start_in_any_second_than_may_on_two_hosts(fleet: Fleet) -> None:
    for name in ("w1", "w2"):
        fleet.worker(name, slots=3).start().wait_line("ready")

    def both_took_part() -> bool:
        if not fleet.unfinished():
            for number in range(6):
                fleet.app.tasks[f"{APPLICATION}.five_a_second"].delay(number)
        rows = fleet.ledger.rows()
        return len(rows) >= 18 and len({row.split()[2] for row in rows}) == 2

    fleet.wait_until(both_took_part, 60)
    rows = fleet.ledger.rows()
    claimed_ms = sorted(int(row.split()[1]) for row in rows)
    assert all(later - first >= 1000 for first, later in zip(claimed_ms, claimed_ms[5:], strict=False))


def test_who_publishes_by_name_alone_gets_round_no_limit(fleet: Fleet) -> None:
    for name in ("w1", "w2"):
        fleet.worker(name, slots=3).start().wait_line("ready")
    ignorant = Celery("ignorant", broker=fleet.url, set_as_current=False)

    for number in range(8):
        ignorant.send_task(f"{APPLICATION}.two_at_once", args=(number,))
    rows = fleet.wait_done(16)

    assert most_at_once(rows) <= 2
    fleet.wait_until(lambda: fleet.unfinished() == 0)
    ignorant.close()


def test_a_second_call_gets_the_result_of_the_first(fleet: Fleet) -> None:
    fleet.worker(slots=2).start().wait_line("ready")
    once = fleet.app.tasks[f"{APPLICATION}.once"]
    first = once.delay("k", str(fleet.directory / "open"))
    fleet.wait_done(1)
    second = once.delay("k", str(fleet.directory / "open"))
    fleet.open_gate("open")

    assert second.get(timeout=60) == "k"
    assert second.id == first.id
    fleet.wait_until(lambda: fleet.unfinished() == 0)
    third = once.delay("k", str(fleet.directory / "open"))
    assert third.get(timeout=60) == "k"
    assert fleet.ledger.rows() == [f"begin k {first.id}", f"begin k {third.id}"]


def test_a_task_that_retries_is_not_in_its_own_way(fleet: Fleet) -> None:
    fleet.worker(slots=2).start().wait_line("ready")
    retrying = fleet.app.tasks[f"{APPLICATION}.once_retrying"]

    assert retrying.delay(3).get(timeout=60) == 3
    assert fleet.ledger.rows() == [f"retry {number}" for number in range(4)]


def test_one_that_waits_in_another_queue_starts_when_there_is_room(fleet: Fleet) -> None:
    task, gate = fleet.app.tasks[f"{APPLICATION}.two_that_wait"], str(fleet.directory / "go")
    fleet.worker("w1", slots=2, options=("-Q", "first")).start().wait_line("ready")
    fleet.worker("w2", slots=2, options=("-Q", "second")).start().wait_line("ready")
    for number in range(2):
        task.apply_async((number, gate), queue="first")
    fleet.wait_done(2)

    task.apply_async((9, gate), queue="second")
    fleet.wait_until(lambda: any(view.state == "limited" for view in fleet.store.reads.messages()))
    fleet.open_gate("go")
    rows = fleet.wait_done(6)

    assert most_at_once(rows) <= 2
    times = {tuple(row.split()[:2]): float(row.split()[2]) for row in rows}
    assert times["begin", "9"] >= min(times["end", "0"], times["end", "1"])


def test_a_release_that_changes_a_limit_counts_when_its_first_host_starts(fleet: Fleet) -> None:
    task = fleet.app.tasks[f"{APPLICATION}.two_that_wait"]
    task.atomic_max_running = 1  # what the last release said
    for number in range(6):
        task.delay(number, str(fleet.directory / "go"))

    fleet.worker(slots=3).start().wait_line("ready")
    assert most_at_once(fleet.wait_done(2)) == 2
    fleet.open_gate("go")
    assert most_at_once(fleet.wait_done(12)) == 2


def test_starts_are_in_the_order_of_publishing(fleet: Fleet) -> None:
    for number in range(6):
        fleet.app.tasks[f"{APPLICATION}.one_a_tenant"].delay("a", number, 0.0)

    fleet.worker(slots=3).start()
    rows = [row for row in fleet.wait_done(12) if row.startswith("begin")]

    assert all(first < second for first, second in pairwise(row.split()[1] for row in rows))
