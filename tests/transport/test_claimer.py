"""A claimer turn by turn: what it asks of the database, and what becomes of its endings."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pytest

from atomic_celery import errors
from atomic_celery.claimer import PAUSE_S, Claimer, Hooks
from atomic_celery.demand import Demand, Want
from atomic_celery.endings import Ending
from atomic_celery.lanes import Lanes
from atomic_celery.lease import LeaseKeeper, trusted_until
from atomic_celery.store import Claimed, Holder, NewMessage, Store
from atomic_celery.store.messages import Messages
from atomic_celery.store.queues import Queue, QueueSpec
from atomic_celery.store.reads import Filter
from atomic_celery.store.records import Turn
from atomic_celery.store.results import Outcome
from tests.support.clocks import ManualClock
from tests.support.waiting import wait_until

HOLDER = Holder("claimer", "boot")


class Wants:
    """A consumer that wants so many messages of its queue."""

    def __init__(self, queue: Queue) -> None:
        self.queue, self.room = queue, 10
        self.got: list[Claimed] = []

    def demand(self) -> Demand:
        return Demand(wants=(Want((self.queue.id,), self.room),))

    def deliver(self, claimed: list[Claimed]) -> None:
        self.got += claimed
        self.room -= len(claimed)

    def redeclare(self, queue_ids: Collection[int]) -> None:
        raise AssertionError(f"nothing goes away here, but {queue_ids} did")

    def settled(self) -> None:
        """Nobody waits for it."""


@pytest.fixture
def wants(store: Store) -> Wants:
    return Wants(store.queues.declare(QueueSpec(name="q")))


@pytest.fixture
def keeper(store: Store) -> LeaseKeeper:
    return LeaseKeeper(store, HOLDER, store.settings)


@pytest.fixture
def claimer(store: Store, wants: Wants, keeper: LeaseKeeper) -> Iterator[Claimer]:
    claimer = Claimer(store, HOLDER, keeper, store.settings, sleeper="claimer", consumer=wants)
    yield claimer
    claimer.stop(60)


def publish(store: Store, queue: Queue, count: int, **parts: Any) -> None:
    store.messages.publish([NewMessage(queue.id, payload=str(number), **parts) for number in range(count)])


def turn(claimer: Claimer) -> None:
    """Take turns until there is nothing more to do."""
    while claimer.turn() <= PAUSE_S:
        pass


def unfinished(store: Store) -> list[str]:
    return sorted(view.state for view in store.reads.messages())


def test_it_claims_no_more_than_is_wanted_and_holds_what_it_claimed(
    store: Store, claimer: Claimer, wants: Wants, keeper: LeaseKeeper
) -> None:
    publish(store, wants.queue, 15)
    turn(claimer)
    assert [message.payload for message in wants.got] == [str(number) for number in range(10)]
    assert sorted(lease.message_id for lease in keeper.held()) == sorted(message.id for message in wants.got)


def test_a_slow_answer_to_a_claim_makes_no_lease_longer(
    store: Store, claimer: Claimer, wants: Wants, keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, real = ManualClock(), Messages.turn

    def answer_slowly(self: Messages, *arguments: Any) -> Turn:
        answer = real(self, *arguments)
        clock.advance(2.0)
        return answer

    monkeypatch.setattr(Messages, "turn", answer_slowly)
    monkeypatch.setattr(claimer, "_clock", clock)
    publish(store, wants.queue, 1)
    asked_at = clock.now()
    claimer.turn()
    [lease] = keeper.held()
    assert lease.trusted_until == trusted_until(asked_at, store.settings)


@pytest.mark.parametrize(
    ("outcome", "left"),
    [("complete", []), ("release", ["ready"]), ("crash", ["ready"]), ("delay", ["delayed"])],
)
def test_an_ending_is_settled_in_the_next_turn_and_not_renewed_any_more(
    store: Store, claimer: Claimer, wants: Wants, keeper: LeaseKeeper, outcome: Any, left: list[str]
) -> None:
    publish(store, wants.queue, 1)
    turn(claimer)
    wants.room = 0
    verdicts: list[bool] = []
    due_ms = store.now_ms() + 60_000
    claimer.settle(Ending(wants.got[0].held, outcome, reason="died", due_ms=due_ms, then=verdicts.append))
    turn(claimer)
    assert unfinished(store) == left
    assert verdicts == [True]
    assert keeper.held() == []


def test_what_ends_publishes_only_if_it_was_still_ours(store: Store, claimer: Claimer, wants: Wants) -> None:
    publish(store, wants.queue, 2)
    turn(claimer)
    wants.room = 0
    ours, lost = (message.held for message in wants.got)
    store.messages.release([lost])
    refused: list[Ending] = []
    claimer.hooks = Hooks(refused=refused.append)
    for held, text in ((ours, "from ours"), (lost, "from lost")):
        message = NewMessage(wants.queue.id, payload=text)
        claimer.settle(Ending(held, "complete", outbox=lambda message=message: [message]))  # type: ignore[misc]
    turn(claimer)
    assert [ending.held for ending in refused] == [lost]
    wants.room = 10
    claimer.look_again(thoroughly=True)
    turn(claimer)
    assert [message.payload for message in wants.got[2:]] == ["1", "from ours"]


def test_an_ending_whose_answer_was_lost_is_tried_again_and_not_called_refused(
    store: Store, claimer: Claimer, wants: Wants, keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, wants.queue, 1)
    turn(claimer)
    wants.room = 0
    refused: list[Ending] = []
    claimer.hooks = Hooks(refused=refused.append)
    claimer.settle(Ending(wants.got[0].held, "complete"))
    real = Messages.turn

    def lose_the_answer(self: Messages, *args: Any) -> Any:
        real(self, *args)
        raise errors.StoreUnavailable("the answer was lost")

    with monkeypatch.context() as broken:
        broken.setattr(Messages, "turn", lose_the_answer)
        with pytest.raises(errors.StoreUnavailable):
            claimer.turn()
    assert [lease.message_id for lease in keeper.held()] == [wants.got[0].id], "unsettled, as far as anybody knows"
    turn(claimer)
    assert refused == []
    assert keeper.held() == []
    assert unfinished(store) == []


def test_an_end_that_is_refused_is_buried_at_once_and_holds_up_no_other(
    store: Store, claimer: Claimer, wants: Wants
) -> None:
    wants.room = 20
    publish(store, wants.queue, 20)
    turn(claimer)
    told: dict[int, bool] = {}
    burials: list[int] = []
    claimer.hooks = Hooks(
        degraded=lambda *_: pytest.fail("the database answers"),
        crashed=lambda crashed: burials.extend(each.id for each in crashed if each.buried),
    )
    for number, message in enumerate(wants.got):
        status: Any = None if number == 7 else "SUCCESS"
        outcome = Outcome(f"t{number}", status, "{}", None)

        def then(ours: bool, message_id: int = message.id) -> None:
            told[message_id] = ours

        claimer.settle(Ending(message.held, "complete", outbox=lambda outcome=outcome: [outcome], then=then))
    assert claimer.flush()
    refused = wants.got[7].id
    assert told == {message.id: message.id != refused for message in wants.got}
    [dead] = store.reads.messages(Filter(state="dead"))
    assert (dead.id, dead.crashes) == (refused, 1)
    assert burials == [refused]
    [crash] = store.reads.crashes(refused)
    assert crash.reason.startswith("its end cannot be stored: ")
    assert unfinished(store) == ["dead"]


def test_a_refusal_that_nothing_can_be_done_about_is_told(
    store: Store, claimer: Claimer, wants: Wants, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, wants.queue, 2)
    turn(claimer)

    def refuse(self: Messages, *args: Any) -> Any:
        raise errors.StoreRefused("not that")

    for message in wants.got:
        claimer.settle(Ending(message.held, "complete"))
    with monkeypatch.context() as broken:
        broken.setattr(Messages, "turn", refuse)
        assert not claimer.flush()
    assert claimer.flush()
    assert unfinished(store) == ["dead"]


def test_on_its_thread_it_says_when_the_database_is_away_and_when_it_is_back(
    store: Store, claimer: Claimer, wants: Wants, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[int, int]] = []
    recovered: list[bool] = []
    claimer.hooks = Hooks(
        degraded=lambda failures, retry_in_ms, _: said.append((failures, retry_in_ms)),
        recovered=lambda: recovered.append(True),
    )

    def away(self: Messages, *args: Any) -> Any:
        raise errors.StoreUnavailable("away")

    publish(store, wants.queue, 1)
    with monkeypatch.context() as broken:
        broken.setattr(Messages, "turn", away)
        claimer.start()
        wait_until(lambda: len(said) >= 2)
    wait_until(lambda: recovered)
    wait_until(lambda: wants.got)
    assert said[:2] == [(1, 1000), (2, 2000)]


def test_stopping_settles_what_waits_and_claims_nothing_more(store: Store, claimer: Claimer, wants: Wants) -> None:
    publish(store, wants.queue, 1)
    claimer.start()
    wait_until(lambda: wants.got)
    claimer.settle(Ending(wants.got[0].held, "complete"))
    assert claimer.stop(60)
    assert unfinished(store) == []
    publish(store, wants.queue, 1)
    assert unfinished(store) == ["ready"]


def test_what_was_given_back_is_found_before_the_cursor(store: Store, claimer: Claimer, wants: Wants) -> None:
    publish(store, wants.queue, 20)
    turn(claimer)
    first = wants.got[0]
    store.messages.release([first.held])
    wants.room = 20
    claimer.look_again()
    turn(claimer)
    assert [message.id for message in wants.got].count(first.id) == 2
    assert len({message.id for message in wants.got}) == 20


def test_lanes_begin_behind_what_was_claimed_and_no_queue_is_always_first() -> None:
    lanes = Lanes()
    told = Claimed(
        1, 1, queue_id=8, priority=9, payload="", crashes=0, task_id=None, revoked=False, expired=False, position=5
    )
    lanes.passed([told])
    some = [lanes.of([7, 8], from_the_start=False) for _ in range(2)]
    assert [lane.queue_id for lane in some[0][:2]] != [lane.queue_id for lane in some[1][:2]]
    assert {(lane.queue_id, lane.priority): lane.after for lane in some[0] if lane.after} == {(8, 9): 5}
    assert [lane.priority for lane in some[0]] == sorted([*range(10), *range(10)], reverse=True)
    assert not any(lane.after for lane in lanes.of([7, 8], from_the_start=True))
