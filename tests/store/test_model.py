"""Any order of events leaves the store as a model of a few lines says, and every invariant true.

The model knows no tables, no locks and no SQL: one record a message. Whatever two hosts, time, their deaths and
an operator do, every answer of the store is compared with the model's, and then all of what it holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from atomic_celery import errors
from atomic_celery.store.records import Claimed, Held, Holder, NewMessage, Settlement
from tests.store.any_order import Machine, run_on_postgresql, run_on_sqlite
from tests.store.desk import LEASE_MS, Desk
from tests.support.hosts import new_host

MAX_CRASHES = 3
HOSTS = [Holder("h1", "b", is_host=True), Holder("h2", "b", is_host=True)]
TASKS = st.sampled_from(["t1", "t2", None, None])
DELAYS = st.sampled_from([None, None, None, 0, 500, 20_000])
ANY = st.integers(0, 10**6)
PROOF = st.integers(0, 6)


@dataclass
class Message:
    """What the model knows of one message."""

    task_id: str | None
    priority: int
    payload: str
    state: str
    place: int
    """Its order among the ready ones of its priority."""
    due_ms: int = 0
    fence: int = 0
    crashes: int = 0
    holder: str = ""
    lease_until_ms: int = 0
    succeeded: bool = False
    granted: list[int] = field(default_factory=list)
    """Every fence that a claim of it has had."""


class Life(Machine):
    """Two hosts, a clock and an operator at one queue."""

    max_crashes = MAX_CRASHES

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(self.store)
        for holder in HOSTS:
            self.store.hosts.register(new_host(holder.id, holder.boot))
        self.model: dict[int, Message] = {}
        self.grants: list[Held] = []
        self.drained: set[str] = set()
        self.reclaimed_ms = 0
        self._places = itertools.count()

    # What clients do

    @rule(task_id=TASKS, priority=st.sampled_from([0, 0, 5, 9]), delay_ms=DELAYS)
    def publish(self, task_id: str | None, priority: int, delay_ms: int | None) -> None:
        new = self._new(task_id, priority, delay_ms)
        [message_id] = self.desk.messages.publish([new])
        self._published(message_id, new, known=self._unfinished(task_id))

    @rule(tasks=st.lists(st.tuples(TASKS, DELAYS), min_size=2, max_size=6))
    def publish_together(self, tasks: list[tuple[str | None, int | None]]) -> None:
        new = [self._new(task_id, 0, delay_ms) for task_id, delay_ms in tasks]
        for message_id, message in zip(self.desk.messages.publish(new), new, strict=True):
            self._published(message_id, message, known=self._unfinished(message.task_id))

    # What holders do

    @rule(holder=st.sampled_from(HOSTS), limit=st.integers(1, 4))
    def claim(self, holder: Holder, limit: int) -> None:
        self._claimed(holder, self.desk.claim(holder, limit), limit)

    @rule(holder=st.sampled_from(HOSTS), which=st.lists(PROOF, max_size=3), limit=st.integers(0, 2))
    def turn(self, holder: Holder, which: list[int], limit: int) -> None:
        held = self._pick(which)
        turn = self.desk.messages.turn(holder, Settlement(held), self.desk.lanes(), limit, LEASE_MS)
        assert turn.settled == {message_id for message_id, _ in held if self._live((message_id, _))}
        self._gone(turn.settled)
        self._claimed(holder, turn.claimed, limit)

    @rule(which=st.lists(PROOF, min_size=1, max_size=4), holder=st.sampled_from(HOSTS))
    def renew(self, which: list[int], holder: Holder) -> None:
        held = self._pick(which)
        renewal = self.desk.messages.renew(holder, held, LEASE_MS)
        mine = {pair[0] for pair in held if self._live(pair) and self.model[pair[0]].holder == holder.id}
        assert renewal.renewed == mine
        assert not renewal.unconfirmed
        assert renewal.lost == {message_id for message_id, _ in held} - mine
        for message_id in mine:
            self.model[message_id].lease_until_ms = self.desk.now_ms + LEASE_MS

    @rule(which=st.lists(PROOF, min_size=1, max_size=3))
    def complete(self, which: list[int]) -> None:
        held = self._pick(which)
        live = {pair[0] for pair in held if self._live(pair)}
        assert self.desk.messages.complete(held) == live
        self._gone(live)

    @rule(which=st.lists(PROOF, min_size=1, max_size=3))
    def release(self, which: list[int]) -> None:
        held = self._pick(which)
        live = {pair[0] for pair in held if self._live(pair)}
        assert self.desk.messages.release(held) == live
        self._move(live, "ready")

    @rule(which=PROOF, delay_ms=st.sampled_from([0, 700]))
    def delay(self, which: int, delay_ms: int) -> None:
        [held] = self._pick([which])
        live = self._live(held)
        assert self.desk.messages.delay(held, self.desk.now_ms + delay_ms) == live
        if live:
            self.model[held[0]].due_ms = self.desk.now_ms + delay_ms
            self._move([held[0]], "delayed")

    @rule(which=PROOF)
    def crash(self, which: int) -> None:
        [held] = self._pick([which])
        live = [held[0]] if self._live(held) else []
        self._crashed(live, self.desk.messages.crash([held], "killed"))

    @rule(which=PROOF, delay_ms=DELAYS)
    def supersede(self, which: int, delay_ms: int | None) -> None:
        [held] = self._pick([which])
        old = self.model.get(held[0])
        new = self._new(old.task_id if old else None, 0, delay_ms)
        if not self._live(held):
            with pytest.raises(errors.LeaseLost):
                self.desk.messages.supersede(held, new)
            return
        assert old is not None
        successor_id = self.desk.messages.supersede(held, new)
        if not old.succeeded:
            old.succeeded, old.task_id = True, None
            self._published(successor_id, new, known=False)

    # What time, death and operators do

    @rule(by_ms=st.sampled_from([1, 700, LEASE_MS]))
    def time_passes(self, by_ms: int) -> None:
        self.desk.pass_ms(by_ms)

    @rule(which=ANY, spared_ms=st.sampled_from([0, 0, 1]))
    def a_lease_ends(self, which: int, spared_ms: int) -> None:
        running = self._held_by_somebody()
        ends_ms = self.model[running[which % len(running)]].lease_until_ms
        self.desk.pass_ms(max(0, ends_ms - spared_ms - self.desk.now_ms))

    @rule()
    def reclaim(self) -> None:
        turn = self.store.dialect == "sqlite" or self.desk.now_ms - self.reclaimed_ms >= 1000
        lapsed = [i for i in self._running() if turn and self.model[i].lease_until_ms <= self.desk.now_ms]
        self.reclaimed_ms = self.desk.now_ms if turn else self.reclaimed_ms
        self._crashed(lapsed, self.desk.messages.reclaim())

    @rule(holder=st.sampled_from(HOSTS))
    def holder_dies(self, holder: Holder) -> None:
        held = [i for i in self._running() if self.model[i].holder == holder.id]
        self._crashed(held, self.desk.messages.release_holder(holder.id, holder.boot, "killed"))

    @rule()
    @precondition(lambda self: any(message.state == "delayed" for message in self.model.values()))
    def promote(self) -> None:
        now_ms = self.desk.now_ms
        waiting = sorted(
            (message.due_ms, message_id) for message_id, message in self.model.items() if message.state == "delayed"
        )
        due = [message_id for due_ms, message_id in waiting if due_ms <= now_ms]
        later = [due_ms - now_ms for due_ms, _ in waiting if due_ms > now_ms]
        assert self.desk.messages.promote() == (len(due), min(later, default=None))
        for message_id in due:
            self._to_the_end(message_id)

    @rule()
    def drain_or_undrain(self) -> None:
        holder = HOSTS[1]
        if holder.id in self.drained:
            assert self.store.hosts.undrain(holder.id)
        else:
            assert self.store.hosts.drain(holder.id, "scale down", "somebody").new
        self.drained ^= {holder.id}

    @rule(which=st.lists(ANY, min_size=1, max_size=2), verb=st.sampled_from(["bury", "requeue", "delete"]))
    @precondition(lambda self: self.model)
    def operate(self, which: list[int], verb: str) -> None:
        known = sorted(self.model)
        ids = sorted({known[index % len(known)] for index in which})
        movable = {i for i in ids if not self.model[i].succeeded}
        if verb == "delete":
            assert self.desk.messages.delete(ids) == set(ids)
            self._gone(ids)
        elif verb == "bury":
            moved = {i for i in movable if self.model[i].state != "dead"}
            assert self.desk.messages.bury(ids, "bad luck") == moved
            self._move(moved, "dead")
        else:
            moved = {i for i in movable if self.model[i].state != "ready"}
            assert self.desk.messages.requeue(ids) == moved
            for message_id in sorted(moved):
                self.model[message_id].crashes = 0
                self._to_the_end(message_id)

    # What is always true

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        seen = {
            view.id: (view.state, view.fence, view.crashes, view.task_id)
            for view in self.store.reads.messages(limit=10_000)
        }
        assert seen == {
            message_id: (message.state, message.fence, message.crashes, message.task_id)
            for message_id, message in self.model.items()
        }

    @invariant()
    def every_message_is_in_exactly_one_state(self) -> None:
        assert self.store.reads.misplaced() == []
        assert self.desk.traces_of_the_gone() == []

    @invariant()
    def a_task_id_is_unfinished_once(self) -> None:
        named = [message.task_id for message in self.model.values() if message.task_id]
        assert len(named) == len(set(named))

    @invariant()
    def fences_strictly_increase(self) -> None:
        assert all(message.granted == sorted(set(message.granted)) for message in self.model.values())

    # The model's own moves

    def _new(self, task_id: str | None, priority: int, delay_ms: int | None) -> NewMessage:
        due_ms = None if delay_ms is None else self.desk.now_ms + delay_ms
        payload = f"payload {len(self.grants)} {next(self._places)}"
        return self.desk.new(payload, task_id=task_id, priority=priority, due_ms=due_ms)

    def _held_by_somebody(self) -> list[int]:
        """Return what is running, after seeing to it that something is."""
        if not self._running():
            self.publish_together([(None, None)] * 3)
            self.claim(HOSTS[0], 3)
        return self._running()

    def _running(self) -> list[int]:
        return [message_id for message_id, message in self.model.items() if message.state == "running"]

    def _unfinished(self, task_id: str | None) -> bool:
        return task_id is not None and any(message.task_id == task_id for message in self.model.values())

    def _published(self, message_id: int | None, new: NewMessage, *, known: bool) -> None:
        assert (message_id is None) == known
        if message_id is None:
            return
        assert message_id not in self.model
        due_ms = new.due_ms or 0
        state = "delayed" if due_ms > self.desk.now_ms else "ready"
        self.model[message_id] = Message(new.task_id, new.priority, new.payload, state, next(self._places), due_ms)

    def _claimed(self, holder: Holder, claimed: list[Claimed], limit: int) -> None:
        ready = sorted(
            (-message.priority, message.place, message_id)
            for message_id, message in self.model.items()
            if message.state == "ready"
        )
        expected = [] if holder.id in self.drained else [message_id for *_, message_id in ready[:limit]]
        assert [message.id for message in claimed] == expected
        for message in claimed:
            known = self.model[message.id]
            assert (message.payload, message.crashes, message.fence) == (known.payload, known.crashes, known.fence + 1)
            known.state, known.fence, known.holder = "running", message.fence, holder.id
            known.lease_until_ms = self.desk.now_ms + LEASE_MS
            known.granted.append(message.fence)
            self.grants.append(message.held)

    def _crashed(self, ids: Iterable[int], reports: list[Any]) -> None:
        told = {report.id: (report.crashes, report.buried) for report in reports}
        expected = {}
        for message_id in ids:
            message = self.model[message_id]
            if not message.succeeded:
                message.crashes += 1
                buried = message.crashes >= MAX_CRASHES
                expected[message_id] = (message.crashes, buried)
                self._move([message_id], "dead" if buried else "ready")
            else:
                self._gone([message_id])
        assert told == expected

    def _move(self, ids: Iterable[int], state: str) -> None:
        for message_id in ids:
            if self.model[message_id].succeeded:
                del self.model[message_id]
            else:
                self.model[message_id].state = state

    def _to_the_end(self, message_id: int) -> None:
        self.model[message_id].state, self.model[message_id].place = "ready", next(self._places)

    def _gone(self, ids: Iterable[int]) -> None:
        for message_id in ids:
            del self.model[message_id]

    def _pick(self, which: Iterable[int]) -> list[Held]:
        """Return proofs that were given out, 0 the last one, whatever became of them."""
        self._held_by_somebody()
        newest_first = self.grants[::-1]
        return sorted({newest_first[back % len(newest_first)] for back in which})

    def _live(self, held: Held) -> bool:
        message = self.model.get(held[0])
        return (
            message is not None
            and message.state == "running"
            and message.fence == held[1]
            and message.lease_until_ms > self.desk.now_ms
        )


@pytest.mark.timeout(600)  # a failure is shown as short as it can be made, which takes its time
def test_any_order_of_events_on_sqlite(tmp_path: Path) -> None:
    run_on_sqlite(Life, tmp_path)


@pytest.mark.timeout(600)  # a failure is shown as short as it can be made, which takes its time
def test_any_order_of_events_on_postgresql(postgres_url: str) -> None:
    run_on_postgresql(Life, postgres_url)
