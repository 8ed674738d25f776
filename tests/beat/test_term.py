"""Terms: one leads, knows until when, and writes nothing once it does not."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import pytest

from atomic_celery import errors
from atomic_celery.store.store import Store
from atomic_celery.term import ASK_EVERY_S, Term
from tests.support.clocks import ManualClock
from tests.support.waiting import wait_until

NOW_MS = 1_700_000_000_000
NAME = "beat/test"


class World:
    """A database and the machines of two beats, on one clock that a test moves."""

    def __init__(self, store: Store) -> None:
        self.store, self.clock, self.now_ms = store, ManualClock(), NOW_MS
        store.at(NOW_MS)
        self.term_s = store.settings.term_s

    def term(self, holder: str, clock: ManualClock | None = None) -> Term:
        return Term(self.store, NAME, holder, clock=clock or self.clock)

    def pass_s(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.set_database(self.now_ms + round(seconds * 1000))

    def set_database(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.store.at(now_ms)


@pytest.fixture
def world(store: Store, patient_terms: None) -> World:
    return World(store)


def fence_of(world: World) -> int:
    standing = world.store.terms.look(NAME)
    assert standing is not None
    return standing.fence


def test_one_of_two_leads(world: World) -> None:
    first, second = world.term("first"), world.term("second")

    assert first.keep()
    assert not second.keep()
    assert first.require("leading") == 1
    with pytest.raises(errors.StaleTerm, match="while leading"):
        second.require("leading")


def test_a_term_is_renewed_before_it_runs_out(world: World) -> None:
    first, second = world.term("first"), world.term("second")
    first.keep()
    for _ in range(10):
        world.pass_s(first.seconds_until_next())
        assert first.keep()
        assert not second.keep()

    assert world.now_ms > NOW_MS + world.term_s * 1000
    assert fence_of(world) == 1


def test_another_begins_the_next_term_when_one_ran_out(world: World) -> None:
    first, second = world.term("first"), world.term("second")
    first.keep()
    world.pass_s(world.term_s)

    assert second.keep()
    assert second.require("leading") == 2
    assert not first.held
    assert not first.keep()


def test_somebody_who_waits_asks_often_and_at_the_end_of_the_term(world: World) -> None:
    first, second = world.term("first"), world.term("second")
    first.keep()
    second.keep()
    assert second.seconds_until_next() == ASK_EVERY_S

    world.pass_s(world.term_s - ASK_EVERY_S / 2)
    second.keep()
    assert second.seconds_until_next() == pytest.approx(ASK_EVERY_S / 2)


def test_a_term_that_is_handed_over_can_be_begun_at_once(world: World) -> None:
    first, second = world.term("first"), world.term("second")
    first.keep()
    first.hand_over()
    first.hand_over()

    assert not first.held
    assert second.keep()


def test_whoever_lost_the_term_does_not_hand_over_the_next_one(world: World) -> None:
    first, second, third = map(world.term, ("first", "second", "third"))
    first.keep()
    world.pass_s(world.term_s)
    second.keep()
    first.hand_over()

    assert not third.keep()
    assert second.held


@pytest.mark.parametrize("which", ["monotonic_s", "wall_s"])
def test_a_term_is_not_trusted_past_its_end_by_either_clock(world: World, which: str) -> None:
    first = world.term("first")
    first.keep()
    margin_s = world.store.settings.lease_margin_s

    setattr(world.clock, which, getattr(world.clock, which) + world.term_s - margin_s - 0.001)
    assert first.held
    setattr(world.clock, which, getattr(world.clock, which) + 0.001)
    assert not first.held
    with pytest.raises(errors.StaleTerm):
        first.require("leading")


@pytest.mark.parametrize("verb", ["begin", "renew"])
def test_a_slow_answer_does_not_make_a_term_longer(world: World, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    first = world.term("first")
    if verb == "renew":
        first.keep()
        world.pass_s(first.seconds_until_next())
    quick: Callable[..., object] = getattr(world.store.terms, verb)

    def slow(*args: object) -> object:
        world.clock.advance(3)  # while the question is under way
        world.set_database(world.now_ms + 3000)
        answer = quick(*args)
        world.clock.advance(4)  # while the answer is
        world.set_database(world.now_ms + 4000)
        return answer

    monkeypatch.setattr(world.store.terms, verb, slow)
    first.keep()
    world.pass_s(world.term_s - world.store.settings.lease_margin_s - 7)
    assert not first.held
    assert not world.term("second").keep()


def test_a_term_that_ran_out_is_not_revived_by_its_holder(world: World) -> None:
    first = world.term("first")
    first.keep()
    world.set_database(NOW_MS + round(world.term_s * 1000))  # its own clocks stood still
    assert first.held
    world.clock.advance(first.seconds_until_next())

    assert not first.keep()
    assert first.keep()
    assert first.require("leading") == 2


def test_whoever_finds_its_term_over_hears_of_it_before_it_begins_the_next(world: World) -> None:
    """It was frozen: whatever it was about to do under the old term must not go on under the new one."""
    first = world.term("first")
    first.keep()
    world.pass_s(world.term_s)

    assert not first.keep()
    assert fence_of(world) == 1
    assert first.keep()
    assert fence_of(world) == 2


def test_a_beginning_whose_answer_got_lost_is_taken_up(world: World) -> None:
    first = world.term("first")
    world.store.terms.begin(NAME, "first", world.store.settings.term_ms)

    assert first.keep()
    assert first.require("leading") == 1


def test_a_clock_set_back_keeps_nobody_from_leading(world: World) -> None:
    first, second = world.term("first"), world.term("second")
    first.keep()
    world.clock.advance(ASK_EVERY_S)
    world.set_database(NOW_MS - 3_600_000)

    assert second.keep()
    with pytest.raises(errors.StaleTerm), world.store.transaction():
        first.hold("leading")


def test_holding_a_term_that_is_over_is_refused(world: World) -> None:
    first, second = world.term("first"), world.term("second", ManualClock())
    first.keep()
    world.set_database(NOW_MS + round(world.term_s * 1000))
    assert first.held
    second.keep()

    with pytest.raises(errors.StaleTerm, match="superseded"), world.store.transaction():
        first.hold("leading")
    assert not first.held


def test_no_term_begins_while_a_transaction_holds_the_last_one(world: World) -> None:
    first = world.term("first")
    first.keep()
    begun = threading.Event()
    fences: list[int | None] = []

    def begin() -> None:
        begun.set()
        fences.append(world.store.terms.begin(NAME, "second", world.store.settings.term_ms))

    successor = threading.Thread(target=begin)
    with world.store.transaction():
        first.hold("leading")
        world.set_database(NOW_MS + round(world.term_s * 1000))
        successor.start()
        begun.wait(60)
        wait_until(lambda: waits(world.store) or not successor.is_alive())
        assert fences == []
    successor.join(60)
    assert fences == [2]


def waits(store: Store) -> bool:
    """Whether a statement waits for a lock; SQLite cannot tell, but the thread cannot have ended there."""
    if store.dialect == "sqlite":
        return True
    with store._database.own_connection() as driver, driver.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return bool(cursor.fetchone()[0])


def test_a_stale_term_is_a_lost_lease_and_survives_a_pickle() -> None:
    error = pickle.loads(pickle.dumps(errors.StaleTerm("beat/x", 7, doing="ticking", reason="superseded")))

    assert isinstance(error, errors.LeaseLost)
    assert (error.term, error.fence, error.reason) == ("beat/x", 7, "superseded")
    assert str(error) == "lost the term 'beat/x' (fence 7, superseded) while ticking"
