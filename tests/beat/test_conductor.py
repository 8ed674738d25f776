"""A schedule run under a term: each run is enqueued together with its record, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, schedules
from celery.beat import ScheduleEntry

from atomic_celery import errors
from atomic_celery.beat.conductor import Conductor
from atomic_celery.beat.entries import Configured, Entry
from atomic_celery.config import Settings
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import NewMessage
from atomic_celery.store.store import open_store
from atomic_celery.term import Term
from tests.support.clocks import ManualClock

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000

app = Celery("conductor", broker="memory://", set_as_current=False)


class World:
    """A database, one clock for it and every beat, and a queue for what they enqueue."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.store = open_store(url, Settings(**settings))
        self.store.schema.migrate()
        self.clock, self.now_ms = ManualClock(), NOW_MS
        self.store.at(NOW_MS)
        self.queue_id = self.store.queues.declare(QueueSpec(name="q")).id
        self.fail: Callable[[], object] = lambda: None
        self.published: list[str] = []
        self.unpublishable: set[str] = set()

    def beat(self, holder: str = "first", **seconds: float) -> Conductor:
        """Make a beat whose entries are due every so many seconds."""
        return self.beat_on(holder, {name: timedelta(seconds=every) for name, every in seconds.items()})

    def beat_on(self, holder: str, intervals: Mapping[str, Any], term: Term | None = None) -> Conductor:
        entries = {name: ScheduleEntry(name, "task", schedule=every, app=app) for name, every in intervals.items()}
        term = term or Term(self.store, "beat/test", holder, clock=self.clock)
        return Conductor(self.store, term, "test", Configured(entries), self.publish)

    def publish(self, entry: Entry, due_ms: int, task_id: str) -> None:
        if entry.name in self.unpublishable:
            raise ValueError("no JSON")
        self.store.messages.publish([NewMessage(self.queue_id, f"{entry.name} {due_ms - NOW_MS}", task_id=task_id)])
        self.published.append(task_id)
        self.fail()

    def pass_s(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.set_database(self.now_ms + round(seconds * 1000))

    def set_database(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.store.at(now_ms)

    def work(self, beat: Conductor) -> None:
        """Let a beat do all there is to do at this moment."""
        while beat.turn() == 0:
            pass

    def enqueued(self) -> list[str]:
        """Return every run in the queue: the entry's name and the due time since the beginning."""
        return [message.payload for message in self.store.messages.take([self.queue_id], 1000)]

    def task_ids(self) -> list[str | None]:
        return [message.task_id for message in self.store.messages.take([self.queue_id], 1000)]

    def fence(self) -> int:
        standing = self.store.terms.look("beat/test")
        assert standing is not None
        return standing.fence

    def runs_noted(self, name: str = "a") -> int:
        return self.store.schedules.load("test")[name].total_runs


@pytest.fixture
def make_world(database_url: str, patient_terms: None) -> Any:
    made: list[World] = []

    def make(**settings: Any) -> World:
        made.append(World(database_url, **settings))
        return made[-1]

    yield make
    for world in made:
        world.store.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


def test_the_first_run_comes_one_interval_after_the_beginning(world: World) -> None:
    beat = world.beat(a=10)
    assert beat.turn() == pytest.approx(5)  # the term is renewed by then
    world.pass_s(9.999)
    world.work(beat)
    assert world.enqueued() == []

    world.pass_s(0.001)
    world.work(beat)
    assert world.enqueued() == ["a 10000"]
    assert world.runs_noted() == 1


def test_a_beat_asks_to_be_called_when_something_is_due(world: World) -> None:
    assert world.beat(a=2, b=3).turn() == pytest.approx(2)


def test_whoever_does_not_lead_enqueues_nothing(world: World) -> None:
    first, second = world.beat(a=10), world.beat("second", a=10)
    world.work(first)
    world.pass_s(10)
    second.turn()
    assert world.enqueued() == []


def test_a_takeover_loses_no_run_and_repeats_none(world: World) -> None:
    first, second = world.beat(a=1), world.beat("second", a=1)
    for _ in range(5):
        world.work(first)
        second.turn()
        world.pass_s(1)
    for _ in range(30):  # the first is frozen
        world.work(second)
        world.pass_s(1)
    world.work(first)

    assert world.enqueued() == [f"a {number * 1000}" for number in range(1, 35)]


@pytest.mark.parametrize("asleep", [False, True])
def test_a_beat_frozen_in_the_middle_of_its_work_enqueues_nothing_more(world: World, asleep: bool) -> None:
    second = world.beat("second", a=1)

    class Freezing(schedules.schedule):
        def is_due(self, _last_run_at: object) -> tuple[bool, float]:
            second.turn()
            world.pass_s(60)
            if asleep:  # its own clocks stood still
                world.clock, first_clock.monotonic_s = ManualClock(), first_clock.monotonic_s - 60
                first_clock.wall_s -= 60
            world.work(second)
            return True, 1

    first_clock = world.clock
    first = world.beat_on("first", {"a": Freezing(1, app=app)})
    with pytest.raises(errors.StaleTerm, match="superseded") if asleep else nullcontext():
        world.work(first)
    assert len(set(found := world.enqueued())) == len(found)
    assert world.runs_noted() == len(found)


def test_a_run_whose_publishing_fails_for_the_database_is_not_noted(world: World) -> None:
    beat = world.beat(a=10)
    world.work(beat)
    world.pass_s(10)

    def fail() -> None:
        try:
            raise errors.StoreUnavailable("gone")
        except errors.StoreUnavailable:
            raise RuntimeError("Celery puts its own around it")  # noqa: B904

    world.fail = fail
    with pytest.raises(errors.StoreUnavailable, match="gone"):
        world.work(beat)
    assert world.enqueued() == []
    assert world.runs_noted() == 0

    world.fail = lambda: None
    beat.forget()
    world.work(beat)
    assert world.enqueued() == ["a 10000"]


def test_a_run_that_cannot_be_published_does_not_stand_in_the_way(world: World) -> None:
    beat = world.beat(a=10, b=10)
    world.work(beat)
    world.pass_s(10)
    world.unpublishable = {"a"}
    world.work(beat)

    assert world.enqueued() == ["b 10000"]
    assert world.runs_noted("a") == world.runs_noted("b") == 1


def test_a_run_that_was_noted_already_is_not_noted_again(world: World) -> None:
    term = Term(world.store, "beat/test", "first", clock=world.clock)
    beat, double = (world.beat_on("first", {"a": timedelta(seconds=10)}, term) for _ in range(2))
    world.work(beat)
    world.work(double)
    world.pass_s(10)
    world.work(double)

    with pytest.raises(errors.StoreBusy, match="changed by another program"):
        world.work(beat)
    beat.forget()
    world.work(beat)
    assert world.enqueued() == ["a 10000"]


def test_task_ids_are_the_same_however_often_a_run_is_tried_and_never_again(world: World) -> None:
    beat = world.beat(a=10)
    world.work(beat)
    world.pass_s(10)
    lost = iter([errors.StoreUnavailable("gone")])

    def lose_once() -> None:
        for error in lost:
            raise error

    world.fail = lose_once
    with pytest.raises(errors.StoreUnavailable):
        world.work(beat)
    beat.forget()
    for _ in range(3):
        world.work(beat)
        world.pass_s(10)

    assert world.published[0] == world.published[1]
    assert len(set(world.published)) == 3
    assert world.task_ids() == world.published[1:]


def test_a_changed_schedule_begins_anew_and_keeps_its_count(world: World) -> None:
    beat = world.beat(a=10)
    world.work(beat)
    world.pass_s(10)
    world.work(beat)
    beat.close()
    world.pass_s(7)

    changed = world.beat("second", a=3600)
    world.work(changed)
    world.pass_s(3599.999)
    world.work(changed)
    assert world.enqueued() == ["a 10000"]
    world.pass_s(0.001)
    world.work(changed)
    assert world.enqueued() == [f"a {17_000 + HOUR_MS}"]
    assert world.runs_noted() == 2


def test_an_unchanged_schedule_goes_on_where_it_stood(world: World) -> None:
    beat = world.beat(a=10)
    world.work(beat)
    beat.close()
    world.pass_s(7)

    restarted = world.beat("second", a=10)
    world.work(restarted)
    world.pass_s(3)
    world.work(restarted)
    assert world.enqueued() == ["a 10000"]


def test_what_is_not_in_the_schedule_any_more_is_forgotten(world: World) -> None:
    beat = world.beat(a=10, b=10)
    world.work(beat)
    beat.close()
    world.work(world.beat("second", b=10))

    assert world.store.schedules.load("test").keys() == {"b"}


@pytest.mark.parametrize(("missed", "count"), [("skip", 0), ("last", 1), ("all", 24)])
def test_what_nobody_was_there_for_is_up_to_the_setting(
    make_world: Callable[..., World], missed: str, count: int
) -> None:
    world = make_world(beat_missed=missed)
    beat = world.beat(a=3600)
    world.work(beat)
    world.pass_s(24 * 3600 + 1800)
    world.work(beat)
    found = world.enqueued()

    assert len(found) == count
    assert not found or found[-1] == f"a {24 * HOUR_MS}"
    world.pass_s(1800)
    world.work(beat)
    assert world.enqueued() == [f"a {25 * HOUR_MS}"]


def test_a_clock_that_goes_forward_enqueues_by_the_same_rule(world: World) -> None:
    beat = world.beat(a=10)
    world.work(beat)
    world.set_database(NOW_MS + HOUR_MS)
    with pytest.raises(errors.StaleTerm):
        world.work(beat)
    beat.forget()
    world.work(beat)

    assert world.enqueued() == [f"a {due}" for due in range(HOUR_MS - 30_000, HOUR_MS + 1, 10_000)]


def test_a_clock_that_goes_back_stops_no_interval_and_repeats_no_task_id(world: World) -> None:
    beat = world.beat(a=10)
    world.work(beat)
    for _ in range(3):
        world.pass_s(10)
        world.work(beat)
    ids = world.task_ids()

    world.set_database(NOW_MS)
    world.work(beat)
    for _ in range(3):
        world.pass_s(10)
        world.work(beat)
    ids_after = world.task_ids()

    assert len(ids) == len(ids_after) == 3
    assert len({*ids, *ids_after}) == 6


def test_a_long_backlog_does_not_cost_the_term(make_world: Callable[..., World]) -> None:
    world = make_world(beat_missed="all")
    beat = world.beat(a=60)
    world.work(beat)
    world.pass_s(3600)
    world.work(beat)
    fence = world.fence()
    world.pass_s(3600)
    world.fail = lambda: world.pass_s(1)
    while beat.turn() == 0:
        pass

    assert len(world.enqueued()) >= 120
    assert world.fence() == fence + 1  # for the hour in which nobody worked


def test_an_entry_whose_schedule_fails_does_not_stand_in_the_way(world: World) -> None:
    class Broken(schedules.schedule):
        def remaining_estimate(self, _last_run_at: object) -> timedelta:
            raise ZeroDivisionError

    beat = world.beat_on("first", {"a": Broken(10, app=app), "b": timedelta(seconds=10)})
    world.work(beat)
    world.pass_s(10)
    world.work(beat)
    assert world.enqueued() == ["b 10000"]


def test_closing_hands_the_term_over(world: World) -> None:
    first, second = world.beat(a=10), world.beat("second", a=10)
    world.work(first)
    first.close()
    world.work(second)
    world.pass_s(10)
    world.work(second)
    assert world.enqueued() == ["a 10000"]
