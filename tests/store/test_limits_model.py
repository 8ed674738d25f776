"""Any order of events leaves every limit kept, every key held once, and nobody at a gate who may pass."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from atomic_celery import errors
from atomic_celery.store.records import Claimed, Held, Limit, UniqueUntil
from tests.store.any_order import Machine, run_on_postgresql, run_on_sqlite
from tests.store.desk import ALICE, BOB, LEASE_MS, Desk
from tests.store.hosts import Host

RATE_MS = 10_000
GRAIN_MS = RATE_MS // 1000
LIMITS = [
    None,
    Limit("one", "one", max_running=1),
    Limit("two", "two", max_running=2),
    Limit("rate", "rate", rate_starts=3, rate_ms=RATE_MS),
    Limit("both", "both", max_running=2, rate_starts=4, rate_ms=RATE_MS),
]
KEYS = st.sampled_from([None, None, ("a", "queued"), ("b", "unfinished")])
DELAYS = st.sampled_from([None, None, None, 500])
WHICH = st.integers(0, 10**6)


class Limited(Machine):
    """Two hosts with gates, a clock and an operator at one queue; what runs is read from the database itself."""

    max_crashes = 3

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(self.store)
        self.hosts = [Host(self.desk, ALICE), Host(self.desk, BOB)]
        self.limit_of: dict[int, Limit | None] = {}
        self.key_of: dict[int, tuple[str, UniqueUntil]] = {}
        self.starts: list[tuple[str, int]] = []
        self.grants: list[Held] = []
        self.unfinished: set[int] = set()
        self._numbers = itertools.count()

    @rule(
        kinds=st.lists(
            st.tuples(st.sampled_from(LIMITS), KEYS, DELAYS, st.sampled_from([0, 5])), min_size=1, max_size=4
        )
    )
    def publish(self, kinds: list[tuple[Limit | None, tuple[str, UniqueUntil] | None, int | None, int]]) -> None:
        new = [
            self.desk.new(
                task_id=f"t{next(self._numbers)}",
                limit=limit,
                unique_key=key and key[0],
                unique_until=key and key[1],
                due_ms=None if delay_ms is None else self.desk.now_ms + delay_ms,
                priority=priority,
            )
            for limit, key, delay_ms, priority in kinds
        ]
        taken = {key for key, _ in self.key_of.values()}
        for message_id, message in zip(self.desk.messages.publish(new), new, strict=True):
            assert (message_id is None) == (message.unique_key in taken)
            if message_id is not None:
                self.limit_of[message_id] = message.limit
                self.unfinished.add(message_id)
                if message.unique_key and message.unique_until:
                    self.key_of[message_id] = (message.unique_key, message.unique_until)
                    taken.add(message.unique_key)

    @rule(at=st.integers(0, 1), limit=st.integers(1, 6), complete=st.integers(0, 2))
    def turn(self, at: int, limit: int, complete: int) -> None:
        done = self._live()[:complete]
        turn = self.hosts[at].turn(done, limit)
        assert turn.settled == {message_id for message_id, _ in done}
        self._gone(turn.settled)
        self._started(turn.claimed)
        assert len(turn.claimed) <= limit

    @rule(at=st.integers(0, 1))
    def take_all_there_is(self, at: int) -> None:
        for _ in range(3):
            self._started(self.hosts[at].claim(50))
        self._nobody_waits_who_may_pass()

    @rule(which=WHICH, how=st.sampled_from(["release", "crash", "delay", "supersede"]))
    @precondition(lambda self: self._live())
    def end(self, which: int, how: str) -> None:
        live = self._live()
        held = live[which % len(live)]
        if how == "release":
            assert self.desk.messages.release([held])
        elif how == "delay":
            assert self.desk.messages.delay(held, self.desk.now_ms + 300)
        elif how == "crash":
            [crashed] = self.desk.messages.crash([held], "killed")
            if crashed.buried:
                self.key_of.pop(held[0], None)
        else:
            self._supersede(held)

    @rule(by_ms=st.sampled_from([100, RATE_MS - 1, RATE_MS // 2, LEASE_MS]))
    def time_passes(self, by_ms: int) -> None:
        self.desk.pass_ms(by_ms)
        for crashed in self.desk.messages.reclaim():
            if crashed.buried:
                self.key_of.pop(crashed.id, None)
        self.desk.messages.promote()

    @rule(which=WHICH, verb=st.sampled_from(["bury", "requeue", "delete"]))
    @precondition(lambda self: self.unfinished)
    def operate(self, which: int, verb: str) -> None:
        message_id = sorted(self.unfinished)[which % len(self.unfinished)]
        if verb == "delete":
            assert self.desk.messages.delete([message_id]) == {message_id}
            self._gone([message_id])
        elif verb == "bury":
            if self.desk.messages.bury([message_id], "bad luck"):
                self.key_of.pop(message_id, None)
        else:
            self.desk.messages.requeue([message_id])

    # What is always true

    @invariant()
    def no_more_run_than_may(self) -> None:
        running = Counter(limit.name for view in self._views("running") if (limit := self.limit_of[view.id]))
        for limit in filter(None, LIMITS):
            assert limit.max_running is None or running[limit.name] <= limit.max_running

    @invariant()
    def no_more_start_in_any_window_than_may(self) -> None:
        for limit in filter(None, LIMITS):
            times = sorted(at_ms for name, at_ms in self.starts if name == limit.name)
            if limit.rate_starts is not None:
                assert all(
                    later - first >= RATE_MS for first, later in zip(times, times[limit.rate_starts :], strict=False)
                )

    @invariant()
    def every_message_is_in_exactly_one_state(self) -> None:
        assert {view.id for view in self.store.reads.messages(limit=10_000)} == self.unfinished
        assert self.store.reads.misplaced() == []
        assert self.desk.traces_of_the_gone() == []

    @invariant()
    def a_key_is_held_by_whom_the_model_says(self) -> None:
        held = set(self.store.limits.key_holders(["a", "b"]))
        assert held == {key for key, _ in self.key_of.values()}

    # Its own moves

    def _nobody_waits_who_may_pass(self) -> None:
        running = Counter(limit.name for view in self._views("running") if (limit := self.limit_of[view.id]))
        for view in self._views("limited"):
            limit = self.limit_of[view.id]
            assert limit is not None
            starts_ms = (at_ms for name, at_ms in self.starts if name == limit.name)
            # A start counts to the thousandth part of the period, and never for less than the period.
            counted = [at_ms for at_ms in starts_ms if -(-at_ms // GRAIN_MS) * GRAIN_MS > self.desk.now_ms - RATE_MS]
            full = limit.max_running is not None and running[limit.name] >= limit.max_running
            early = limit.rate_starts is not None and len(counted) >= limit.rate_starts
            assert full or early

    def _supersede(self, held: Held) -> None:
        limit, key = self.limit_of[held[0]], self.key_of.get(held[0])
        new = self.desk.new(
            task_id=f"t{next(self._numbers)}", limit=limit, unique_key=key and key[0], unique_until=key and key[1]
        )
        try:
            successor = self.desk.messages.supersede(held, new)
        except errors.StoreBusy:
            return
        self.limit_of[successor] = limit
        self.unfinished.add(successor)
        if key is not None:
            self.key_of[successor] = self.key_of.pop(held[0])
        assert self.desk.messages.complete([held]) == {held[0]}
        self._gone([held[0]])

    def _started(self, claimed: Iterable[Claimed]) -> None:
        for message in claimed:
            limit = self.limit_of[message.id]
            if limit is not None:
                self.starts.append((limit.name, self.desk.now_ms))
            if message.id in self.key_of and self.key_of[message.id][1] == "queued":
                del self.key_of[message.id]
            self.grants.append(message.held)

    def _gone(self, ids: Iterable[int]) -> None:
        for message_id in ids:
            self.unfinished.discard(message_id)
            self.key_of.pop(message_id, None)

    def _views(self, state: str) -> list[Any]:
        return [view for view in self.store.reads.messages(limit=10_000) if view.state == state]

    def _live(self) -> list[Held]:
        return [
            (view.id, view.fence)
            for view in self._views("running")
            if view.lease_until_ms is not None and view.lease_until_ms > self.desk.now_ms
        ]


@pytest.mark.timeout(600)  # a failure is shown as short as it can be made, which takes its time
def test_any_order_of_events_on_sqlite(tmp_path: Path) -> None:
    run_on_sqlite(Limited, tmp_path)


@pytest.mark.timeout(600)  # a failure is shown as short as it can be made, which takes its time
def test_any_order_of_events_on_postgresql(postgres_url: str) -> None:
    run_on_postgresql(Limited, postgres_url)
