"""Clocks, waits, loops, crash points and errors."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading

import pytest

from atomic_celery import errors
from atomic_celery.backoff import Backoff
from atomic_celery.clock import NEVER, Moment, SystemClock
from atomic_celery.loop import Loop
from tests.support.clocks import ManualClock


def test_the_earlier_of_both_clocks_ends_a_deadline() -> None:
    deadline = Moment(monotonic_s=100, wall_s=1000)
    assert not deadline.reached(Moment(99, 999))
    assert deadline.reached(Moment(100, 0)), "the monotonic clock alone suffices"
    assert deadline.reached(Moment(0, 1000)), "the wall clock alone suffices"
    assert not NEVER.reached(Moment(1e12, 1e12))


def test_a_manual_clock_moves_both_clocks() -> None:
    clock = ManualClock()
    deadline = clock.now().later(5)
    clock.advance(4.9)
    assert not deadline.reached(clock.now())
    clock.advance(0.2)
    assert deadline.reached(clock.now())


def test_the_system_clock_goes_forward() -> None:
    clock = SystemClock()
    first = clock.now()
    assert clock.now().monotonic_s >= first.monotonic_s


def test_waits_double_up_to_the_ceiling_and_start_over_after_a_success() -> None:
    backoff = Backoff()  # what hosts and controllers wait by
    assert [backoff.failed() for _ in range(8)] == [1, 2, 4, 8, 16, 30, 30, 30]
    assert backoff.succeeded()
    assert not backoff.succeeded()
    assert backoff.failed() == 1


def test_a_loop_goes_on_after_an_error_and_stops_without_waiting_out_its_interval() -> None:
    turned, turns = threading.Event(), []

    def turn() -> None:
        turns.append(1)
        if len(turns) == 1:
            raise RuntimeError("the first turn fails")
        turned.set()

    loop = Loop("test-loop", turn, interval_s=3600)
    loop.start()
    while not turned.wait(0.01):
        loop.wake()
    assert loop.stop(timeout_s=60)
    assert loop.stop(timeout_s=60), "stopping twice is harmless"


def test_a_loop_never_started_can_be_stopped() -> None:
    assert Loop("idle", lambda: None, interval_s=1).stop()


@pytest.mark.parametrize(
    "error",
    [
        errors.LeaseLost(7, 3, doing="completing it", reason="superseded"),
        errors.QueueNotFound("q", "no queue 'q'"),
        errors.StoreUnavailable("gone"),
    ],
)
def test_every_error_survives_a_pickle(error: errors.AtomicError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_a_crash_point_kills_at_the_visit_that_was_ordered() -> None:
    program = "from atomic_celery import faults\nfor n in range(5):\n    faults.reach('here'); print(n, flush=True)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "ATOMIC_FAULTS": "there=kill,here=kill@3"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["0", "1"]
