"""Whoever is overdue is cut off, nobody else is, and no thread is left when nothing is due."""

from __future__ import annotations

import threading

import pytest

from atomic_celery import errors
from atomic_celery.store.watchdog import Watch, Watchdog
from tests.support.waiting import wait_until

FAR_S, NEAR_S = 60.0, 0.01

SOON_S = 2.0
"""Not before a test has said all that it has to say, on a machine that has other things to do."""


class Wire:
    """Something to be cut."""

    def __init__(self) -> None:
        self.is_cut = threading.Event()

    def cut(self) -> None:
        self.is_cut.set()


class BrokenWire:
    def cut(self) -> None:
        raise OSError("it was cut already")


@pytest.fixture
def watchdog() -> Watchdog:
    return Watchdog()


def test_who_is_overdue_is_cut_off(watchdog: Watchdog) -> None:
    wire = Wire()
    watch = Watch().start(NEAR_S, wire)
    watchdog.watch(watch)
    assert wire.is_cut.wait(timeout=60)
    assert watch.expired
    assert isinstance(watch.too_late(), errors.StoreUnavailable)


def test_who_has_finished_is_not(watchdog: Watchdog) -> None:
    wire, next_wire = Wire(), Wire()
    done = Watch().start(NEAR_S, wire)
    done.finish()
    watchdog.watch(done)
    watchdog.watch(Watch().start(2 * NEAR_S, next_wire))
    assert next_wire.is_cut.wait(timeout=60)
    assert not wire.is_cut.is_set()


def test_the_connection_in_use_when_time_is_up_is_the_one_that_is_cut(watchdog: Watchdog) -> None:
    given_back, in_use = Wire(), Wire()
    watch = Watch().start(SOON_S, given_back)
    with watchdog._changed:  # it cannot look meanwhile
        watchdog.watch(watch)
        watch.use(in_use)
    assert in_use.is_cut.wait(timeout=60)
    assert not given_back.is_cut.is_set()


def test_a_watch_that_is_started_again_counts_anew(watchdog: Watchdog) -> None:
    wire, later = Wire(), Wire()
    watch = Watch().start(SOON_S, wire)
    with watchdog._changed:
        watchdog.watch(watch)
        watch.finish()
        watchdog.watch(watch.start(FAR_S, wire))
    watchdog.watch(Watch().start(1.5 * SOON_S, later))
    assert later.is_cut.wait(timeout=60)
    assert not wire.is_cut.is_set()


def test_a_nearer_deadline_does_not_wait_for_a_farther_one(watchdog: Watchdog) -> None:
    far, wire = Watch().start(FAR_S), Wire()
    watchdog.watch(far)
    watchdog.watch(Watch().start(NEAR_S, wire))
    assert wire.is_cut.wait(timeout=60)
    far.finish()


def test_a_wire_that_broke_by_itself_does_no_harm(watchdog: Watchdog) -> None:
    wire = Wire()
    watchdog.watch(Watch().start(NEAR_S, BrokenWire()))
    watchdog.watch(Watch().start(2 * NEAR_S, wire))
    assert wire.is_cut.wait(timeout=60)


def test_no_thread_is_left_when_nothing_is_due(watchdog: Watchdog) -> None:
    before = _threads()
    for _ in range(2):
        wire = Wire()
        watchdog.watch(Watch().start(NEAR_S, wire))
        assert wire.is_cut.wait(timeout=60)
        wait_until(lambda: _threads() <= before, describe="a watchdog is left")


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "atomic-deadlines"}
