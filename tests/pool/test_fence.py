"""A child ends itself when its lease is over, without anybody's help."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from billiard.exceptions import WorkerLostError

from atomic_celery.clock import NEVER, Moment, SystemClock
from atomic_celery.concurrency import vigil
from atomic_celery.concurrency.deadline_page import LONG_AGO, NO_ENTRY, DeadlinePage
from tests.pool import tasks
from tests.pool.bench import ALWAYS, Bench, alive
from tests.pool.conftest import OpenBench
from tests.pool.test_recall import hold_one
from tests.support.freezing import freeze
from tests.support.waiting import wait_until

LEASE = (5, 1)


def test_an_errand_without_a_lease_is_never_late(bench: Bench) -> None:
    told = bench.apply(tasks.add, 1, 1)
    bench.run(told)
    assert told.value == "2"


def test_a_child_ends_itself_when_its_lease_runs_out_though_the_host_stands_still(bench: Bench, tmp_path: Path) -> None:
    bench.pool.deadlines.trusted_until = ALWAYS
    told = bench.apply(tasks.spawn, str(tmp_path), lease=LEASE)
    pids = [*bench.started_pids(), *bench.pids]
    until = SystemClock().now().later(1.0)
    bench.trust(told, until)
    wait_until(lambda: not any(map(alive, pids)))  # the loop does not run
    assert until.reached(SystemClock().now())
    bench.run(told)
    assert isinstance(told.error, WorkerLostError)


def test_either_clock_ends_a_lease(bench: Bench, tmp_path: Path) -> None:
    bench.pool.deadlines.trusted_until = lambda message_id, fence: Moment(NEVER.monotonic_s, 1.0)
    told = bench.apply(tasks.mark, str(tmp_path), "never", lease=LEASE)
    bench.run_until(lambda: bench.unstarted)
    assert bench.unstarted == [told.errand]


def test_a_renewed_lease_goes_on(bench: Bench, tmp_path: Path) -> None:
    bench.pool.deadlines.trusted_until = ALWAYS
    told = bench.apply(tasks.hold, str(tmp_path), "a", lease=LEASE)
    bench.run_until(lambda: told.began)
    freeze(told.began[0])  # it sees the renewal in time, however long that takes
    first = SystemClock().now().later(0.5)
    bench.trust(told, first)
    bench.pool.deadlines.set(*LEASE, NEVER)
    os.kill(told.began[0], signal.SIGCONT)
    bench.run_until(lambda: first.later(0.5).reached(SystemClock().now()))  # two looks of the vigil later
    bench.let_go("a")
    bench.run(told)
    assert told.value == "None"


def test_a_revoked_lease_ends_the_child_that_runs_the_message(bench: Bench, tmp_path: Path) -> None:
    bench.pool.deadlines.trusted_until = ALWAYS
    [pid] = bench.pids
    told = bench.apply(tasks.hold_deaf, str(tmp_path), "a", lease=LEASE)
    bench.run_until(lambda: told.began)
    bench.pool.deadlines.revoke(*LEASE)
    wait_until(lambda: not alive(pid))
    bench.run(told)
    assert isinstance(told.error, WorkerLostError)


def test_another_messages_lease_ends_nothing(open_bench: OpenBench, tmp_path: Path) -> None:
    bench = open_bench(2)
    bench.pool.deadlines.trusted_until = ALWAYS
    first = bench.apply(tasks.hold, str(tmp_path), "a", lease=(1, 1))
    second = bench.apply(tasks.hold, str(tmp_path), "b", lease=(2, 1))
    bench.run_until(lambda: first.began and second.began)
    bench.pool.deadlines.revoke(1, 1)
    bench.pool.deadlines.revoke(2, 7)  # another fence of the other message
    bench.run(first)
    assert isinstance(first.error, WorkerLostError)
    bench.let_go("b")
    bench.run(second)
    assert second.value == "None"


def test_an_errand_whose_lease_is_over_before_it_begins_is_handed_back(bench: Bench, tmp_path: Path) -> None:
    bench.pool.deadlines.trusted_until = lambda message_id, fence: LONG_AGO
    told = bench.apply(tasks.mark, str(tmp_path), "never", lease=LEASE)
    after = bench.apply(tasks.add, 1, 1)
    bench.run(after)
    assert bench.unstarted == [told.errand]
    assert not bench.exists("never")
    assert not told.over


def test_a_task_can_ask_whether_it_is_trusted(
    open_bench: OpenBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vigil, "LOOK_EVERY_S", 3600.0)  # it would end the child, perhaps before the task has asked
    bench = open_bench(1)
    bench.pool.deadlines.trusted_until = ALWAYS
    told = bench.apply(tasks.trusted_until_false, str(tmp_path), "a", lease=LEASE)
    bench.run_until(lambda: told.began)
    bench.trust(told, SystemClock().now())
    bench.run_until(lambda: bench.exists("a.fenced"))
    assert told.errand is not None
    bench.pool.kill(told.errand)
    bench.run(told)


def test_a_frozen_child_does_not_go_on_after_its_lease(bench: Bench, tmp_path: Path) -> None:
    """Frozen past its lease, it is thawed: it may look at the clock first, and ends."""
    bench.pool.deadlines.trusted_until = ALWAYS
    told = bench.apply(tasks.hold, str(tmp_path), "a", lease=LEASE)
    bench.run_until(lambda: told.began)
    freeze(told.began[0])
    bench.trust(told, SystemClock().now())
    os.kill(told.began[0], signal.SIGCONT)
    bench.run(told)
    assert isinstance(told.error, WorkerLostError)


def test_entries_are_given_back(bench: Bench) -> None:
    page = bench.pool.deadlines
    page.trusted_until = ALWAYS
    free = len(page._free)
    held = hold_one(bench, "held")
    told = [bench.apply(tasks.add, number, 1, lease=(number, 1)) for number in range(100)]
    bench.let_go("held")
    bench.run(held, *told)
    assert len(page._free) == free
    assert not page._entries


def test_a_page_trusts_what_it_is_told_last_but_never_less() -> None:
    page = DeadlinePage()
    page.trusted_until = lambda message_id, fence: Moment(10.0, 1000.0)
    entry = page.open(LEASE)
    assert page.until(entry) == Moment(10.0, 1000.0)
    page.set(*LEASE, Moment(20.0, 1010.0))
    page.set(*LEASE, Moment(15.0, 1005.0))
    assert page.until(entry) == Moment(20.0, 1010.0)
    page.revoke(*LEASE)
    assert page.until(entry) == LONG_AGO
    page.close(entry, LEASE)
    page.set(*LEASE, Moment(30.0, 1020.0))  # nobody's any more
    assert page.until(entry) == LONG_AGO
    assert page.until(NO_ENTRY) == NEVER
