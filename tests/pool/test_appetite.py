"""How much work a host asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from atomic_celery.concurrency.pace import MOST_IN_CHILD, MOST_IN_HOST, Pace
from tests.pool import tasks
from tests.pool.bench import Bench
from tests.pool.conftest import OpenBench
from tests.pool.test_recall import hold_one
from tests.support.waiting import wait_until


def pace_of(task_s: float) -> Pace:
    pace = Pace()
    pace.saw(task_s)
    return pace


@pytest.mark.parametrize(
    ("task_s", "depth", "lookahead"),
    [
        (0.0, MOST_IN_CHILD, MOST_IN_HOST),
        (0.0001, MOST_IN_CHILD, MOST_IN_HOST),
        (0.001, 20, 250),
        (0.01, 2, 25),
        (0.02, 1, 12),
        (0.04, 0, 6),
        (0.06, 0, 0),
        (60.0, 0, 0),
    ],
)
def test_the_longer_tasks_take_the_less_is_asked_for(task_s: float, depth: int, lookahead: int) -> None:
    assert pace_of(task_s).depth() == depth
    assert pace_of(task_s).lookahead(2, 0.0) == lookahead


def test_of_unknown_tasks_one_may_wait_and_none_is_claimed_ahead() -> None:
    assert Pace().depth() == 1
    assert Pace().lookahead(2, 0.0) == 0


def test_tasks_that_run_now_count_before_they_end() -> None:
    assert pace_of(0.001).lookahead(2, running_s=1.0) == 0


def test_one_long_task_is_enough_to_be_careful() -> None:
    pace = pace_of(0.001)
    pace.saw(1.0)
    assert pace.lookahead(2, 0.0) == 0
    assert pace.depth() == 0


def test_an_idle_pool_asks_for_its_free_slots(open_bench: OpenBench) -> None:
    bench = open_bench(2)
    assert bench.pool.appetite() == 2
    bench.apply(tasks.add, 1, 1)
    assert bench.pool.appetite() == 1


def test_a_pool_that_runs_short_tasks_asks_for_many(bench: Bench) -> None:
    def asks_for_many() -> bool:
        bench.run(*[bench.apply(tasks.add, 1, number) for number in range(300)])
        return bench.pool.appetite() > 20

    wait_until(asks_for_many)  # whatever takes the processor away for a moment makes a task long
    bench.pool.looks_ahead = False
    assert bench.pool.appetite() == 1


def test_a_prefetch_multiplier_of_one_never_looks_ahead(open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.app.conf, "worker_prefetch_multiplier", 1)
    assert not open_bench(1).pool.looks_ahead


def test_a_busy_pool_with_a_long_task_asks_for_nothing_and_gives_up_what_it_has(bench: Bench, tmp_path: Path) -> None:
    bench.run(*[bench.apply(tasks.add, 1, number) for number in range(300)])
    held = hold_one(bench)
    waiting = [bench.apply(tasks.add, 1, number) for number in range(5)]
    bench.run_until(lambda: bench.pool.appetite() == 0 and bench.pool.backlog() == 5)
    bench.run_until(lambda: bench.pool._ledger.running_s() > 0.2)
    assert bench.pool.take_surplus() == [one.errand for one in waiting]
    assert bench.pool.backlog() == 0
    bench.let_go("held")
    bench.run(held)


def test_children_that_may_still_be_added_count_as_free(bench: Bench, tmp_path: Path) -> None:
    """Celery's autoscaler adds one only when it sees more work than children."""
    bench.pool.ceiling = 3
    assert bench.pool.appetite() == 3
    held = [bench.apply(tasks.hold, str(tmp_path), "a") for _ in range(3)]
    assert bench.pool.appetite() == 0
    bench.pool.grow(2)
    assert bench.pool.take_surplus() == []  # they are on their way
    bench.run_until(lambda: all(one.began for one in held))
    bench.let_go("a")
    bench.run(*held)


def test_room_is_told_when_a_child_is_up_and_when_a_task_has_ended(open_bench: OpenBench) -> None:
    bench = open_bench(1)
    told: list[int] = []
    bench.pool.on_room = lambda: told.append(bench.pool.free_slots())
    bench.run(bench.apply(tasks.add, 1, 1))
    assert told == [1]
    bench.pool.grow()
    bench.run_until(lambda: 2 in told)
