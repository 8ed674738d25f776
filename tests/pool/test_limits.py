"""Time limits, and the ends that somebody asked for."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from billiard.exceptions import SoftTimeLimitExceeded, Terminated, TimeLimitExceeded

from atomic_celery.concurrency import wire
from atomic_celery.concurrency.errand import State
from tests.pool import tasks
from tests.pool.bench import Bench, alive
from tests.pool.conftest import OpenBench
from tests.pool.test_death import has_said_the_end
from tests.pool.test_recall import hold_one, queue_behind, runs
from tests.support.waiting import wait_until

SOON_S = 0.3


def test_a_soft_limit_is_raised_in_the_task_which_may_still_return(bench: Bench, tmp_path: Path) -> None:
    told = bench.apply(tasks.hold_until_soft_limit, str(tmp_path), "a", soft_timeout=SOON_S, timeout=60)
    bench.begin("a")
    bench.run(told)
    assert told.value == "'late'"
    assert told.timeouts == [(True, SOON_S)]
    assert bench.exists("a.soft")


def test_a_soft_limit_that_the_task_ignores_is_its_failure(bench: Bench, tmp_path: Path) -> None:
    told = bench.apply(tasks.hold, str(tmp_path), "a", soft_timeout=SOON_S)
    bench.begin("a")
    bench.run(told)
    assert isinstance(told.raised, SoftTimeLimitExceeded)


@pytest.fixture
def slow_beginning(open_bench: OpenBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A pool whose child says that it has begun a task, and begins it when there is a file called ``go``."""

    def reach(point: str) -> None:
        if point == "child.began":
            tasks.wait_for(tmp_path / "go")

    monkeypatch.setattr("atomic_celery.concurrency.child.faults.reach", reach)
    return open_bench(1)


def test_a_soft_limit_is_over_before_the_task_has_quite_begun(slow_beginning: Bench, tmp_path: Path) -> None:
    bench = slow_beginning
    told = bench.apply(tasks.hold, str(tmp_path), "a", soft_timeout=0.1)
    bench.run_until(lambda: told.timeouts)
    (tmp_path / "go").touch()
    bench.run(told)
    assert isinstance(told.error, SoftTimeLimitExceeded)
    assert not bench.exists("a.began")


def test_a_task_is_terminated_before_it_has_quite_begun(slow_beginning: Bench, tmp_path: Path) -> None:
    bench = slow_beginning
    told = bench.apply(tasks.hold, str(tmp_path), "a")
    bench.run_until(lambda: told.began)
    bench.pool.terminate_job(told.began[0])
    (tmp_path / "go").touch()
    bench.run(told)
    assert isinstance(told.error, Terminated)
    assert not bench.exists("a.began")


def test_the_signal_of_a_soft_limit_that_is_another_tasks_hurts_nobody(bench: Bench, tmp_path: Path) -> None:
    held = bench.apply(tasks.hold, str(tmp_path), "a", soft_timeout=60)
    bench.run_until(lambda: held.began)
    bench.pool.terminate_job(held.began[0], signal.SIGUSR1)
    bench.let_go("a")
    bench.run(held)
    assert held.value == "None"


def test_a_hard_limit_ends_the_child_and_says_so_as_billiard_does(bench: Bench, tmp_path: Path) -> None:
    [pid] = bench.pids
    told = bench.apply(tasks.hold_deaf, str(tmp_path), "a", timeout=0.2)
    bench.run(told)
    assert isinstance(told.error, TimeLimitExceeded)
    assert told.timeouts == [(False, 0.2)]
    bench.run_until(lambda: not alive(pid) and bench.up())


def test_a_hard_limit_follows_a_soft_one(bench: Bench, tmp_path: Path) -> None:
    told = bench.apply(tasks.hold_deaf, str(tmp_path), "a", soft_timeout=SOON_S, timeout=SOON_S + 1)
    bench.begin("a")
    bench.run(told)
    assert isinstance(told.error, TimeLimitExceeded)
    assert told.timeouts == [(True, SOON_S), (False, SOON_S + 1)]


def test_a_result_that_arrives_before_a_hard_limit_is_acted_on_counts(bench: Bench) -> None:
    told = bench.apply(tasks.add, 1, 1, timeout=60)
    bench.pool._ledger.tick()
    [link] = bench.pool._crew.links
    wait_until(lambda: has_said_the_end(link))
    assert told.errand is not None
    told.errand.state, link.running = (
        State.RUNNING,
        told.errand,
    )  # as if its beginning had been read, and its end had not
    link.queue.clear()
    header_size = len(wire.header(wire.BEGAN))
    assert len(link.stream.recv(header_size)) == header_size
    bench.pool.on_hard_timeout(told.errand)
    assert told.value == "2"
    assert bench.pids == [link.pid]


def test_limits_of_the_pool_are_those_of_every_task_without_its_own(open_bench: OpenBench, tmp_path: Path) -> None:
    bench = open_bench(1, soft_timeout=SOON_S, timeout=60)
    told = bench.apply(tasks.hold, str(tmp_path), "a")
    bench.begin("a")
    bench.run(told)
    assert isinstance(told.raised, SoftTimeLimitExceeded)
    own = bench.apply(tasks.hold, str(tmp_path), "b", soft_timeout=50)
    bench.run_until(lambda: own.began)
    bench.let_go("b")
    bench.run(own)
    assert own.value == "None"


def test_what_waits_behind_a_task_that_hits_its_limit_runs_once(bench: Bench, tmp_path: Path) -> None:
    told = bench.apply(tasks.hold, str(tmp_path), "a", timeout=0.3)
    bench.run_until(lambda: told.began)
    waiting = queue_behind(bench, 3)
    bench.run(told, *waiting)
    assert isinstance(told.error, TimeLimitExceeded)
    assert [runs(tmp_path, f"m{number}") for number in range(3)] == [1] * 3


def test_a_terminated_task_cleans_up_and_fails_as_terminated(bench: Bench, tmp_path: Path) -> None:
    told = bench.apply(tasks.hold_tidily, str(tmp_path), "a")
    bench.run_until(lambda: bench.exists("a.began") and told.began)
    bench.pool.terminate_job(told.began[0])
    bench.run(told)
    assert isinstance(told.error, Terminated)
    assert told.error.args == (signal.SIGTERM,)
    assert bench.exists("a.tidied")
    bench.run_until(bench.up)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_termination_does_not_hit_the_next_task(bench: Bench, tmp_path: Path, signum: int) -> None:
    """The task that was to be terminated has ended, and the child has begun another, before the signal is sent."""
    first = hold_one(bench, "first")
    second = bench.apply(tasks.hold, str(tmp_path), "second")
    assert second.errand is not None
    bench.pool._ledger.backlog._errands.remove(second.errand)
    [link] = bench.pool._crew.links
    link.give(second.errand, 0, 1e12)
    bench.pool._crew.flush(link)
    bench.let_go("first")
    tasks.wait_for(tmp_path / "second.began")  # the host has not heard of it: its loop stands still
    bench.pool.terminate_job(first.began[0], signum)
    bench.run_until(lambda: first.over and second.began)
    bench.let_go("second")
    bench.run(second)
    assert first.value == second.value == "None"


def test_kill_ends_a_running_errand(bench: Bench, tmp_path: Path) -> None:
    told = bench.apply(tasks.hold_deaf, str(tmp_path), "a")
    bench.run_until(lambda: told.began)
    assert told.errand is not None
    bench.pool.kill(told.errand)
    bench.run(told)
    assert isinstance(told.error, Terminated)
    assert told.error.args == (signal.SIGKILL,)


def test_kill_ends_an_errand_that_the_host_does_not_know_to_run_yet(bench: Bench, tmp_path: Path) -> None:
    told = bench.apply(tasks.hold, str(tmp_path), "a")
    bench.pool._ledger.tick()
    tasks.wait_for(tmp_path / "a.began")
    assert told.errand is not None
    assert told.errand.state is State.SENT
    bench.pool.kill(told.errand)
    bench.run(told)
    assert isinstance(told.error, Terminated)


def test_kill_ends_an_errand_that_waits(bench: Bench, tmp_path: Path) -> None:
    held = hold_one(bench)
    waiting = bench.apply(tasks.mark, str(tmp_path), "never")
    assert waiting.errand is not None
    bench.pool.kill(waiting.errand)
    assert isinstance(waiting.error, Terminated)
    bench.let_go("held")
    bench.run(held)
    assert runs(tmp_path, "never") == 0
    assert bench.pids == held.began


def test_an_end_that_is_over_can_be_asked_for_again(bench: Bench) -> None:
    told = bench.apply(tasks.add, 1, 1)
    bench.run(told)
    assert told.errand is not None
    bench.pool.kill(told.errand)
    told.errand.terminate(15)
    after = bench.apply(tasks.pid)
    bench.run(after)
    assert told.value == "2"
    assert after.began == told.began
