"""Leases are kept, lost and given up by what the database says, and by two clocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from atomic_celery.config import Settings
from atomic_celery.lease import Lease, LeaseKeeper, trusted_until
from atomic_celery.store import open_store
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import Held, Holder, Lane, NewMessage, Renewal
from atomic_celery.store.store import Store
from tests.support.clocks import ManualClock

SETTINGS = Settings()
ME, OTHER = Holder("me", "boot"), Holder("other", "boot")


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with closing(open_store(database_url, SETTINGS)) as opened:
        opened.schema.migrate()
        opened.at(1_000_000)
        yield opened


class Keeping:
    """A keeper whose clock is moved by hand together with the database's, and what it said."""

    def __init__(self, store: Store) -> None:
        self.store, self.clock, self.now_ms = store, ManualClock(), 1_000_000
        self.lost: list[tuple[int, int, str]] = []
        self.renewed: list[Held] = []
        self.queue = store.queues.declare(QueueSpec(name="q"))
        self.keeper = LeaseKeeper(
            store,
            ME,
            SETTINGS,
            clock=self.clock,
            on_lost=lambda lease, reason: self.lost.append((lease.message_id, lease.fence, reason)),
            on_renewed=lambda leases: self.renewed.extend((lease.message_id, lease.fence) for lease in leases),
        )

    def claim(self, holder: Holder = ME) -> Held:
        self.store.messages.publish([NewMessage(queue_id=self.queue.id, payload="{}", task_id=f"t{self.now_ms}")])
        return self.reclaim(holder)

    def reclaim(self, holder: Holder = ME) -> Held:
        """Claim what is ready; hold it, if it is ours."""
        asked_at = self.clock.now()
        lane = Lane(self.queue.id, 0, 0)
        [claimed] = self.store.messages.claim(holder, [lane], 1, SETTINGS.lease_ms)
        if holder is ME:
            self.keeper.hold([Lease(claimed.id, claimed.fence, trusted_until(asked_at, SETTINGS))])
        return claimed.held

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.now_ms += round(seconds * 1000)
        self.store.at(self.now_ms)


def test_what_is_held_is_renewed_in_time_and_for_as_long_as_it_is_held(store: Store) -> None:
    keeping = Keeping(store)
    held = keeping.claim()
    for _ in range(10):
        keeping.pass_time(SETTINGS.renew_every_s)
        assert keeping.keeper.turn() <= SETTINGS.renew_every_s
    assert keeping.renewed == [held] * 10
    assert not keeping.lost
    assert store.messages.complete([held]) == {held[0]}


def test_nothing_is_asked_before_it_is_time(store: Store) -> None:
    keeping = Keeping(store)
    keeping.claim()
    keeping.pass_time(SETTINGS.renew_every_s - 1)
    assert keeping.keeper.turn() == pytest.approx(1)
    assert not keeping.renewed


def test_a_lease_is_trusted_from_the_moment_before_it_was_asked_for(store: Store) -> None:
    keeping = Keeping(store)
    held = keeping.claim()
    lease = keeping.keeper.find(held[0])
    assert lease is not None
    keeping.pass_time(SETTINGS.lease_s - SETTINGS.lease_margin_s - 0.001)
    assert lease.trusted(keeping.clock)
    keeping.pass_time(0.001)
    assert not lease.trusted(keeping.clock)


def test_a_slow_answer_to_a_renewal_makes_no_lease_longer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keeping, renew, takes_s = Keeping(store), store.messages.renew, 2.0

    def renew_slowly(*arguments: Any) -> Renewal:
        answer = renew(*arguments)
        keeping.pass_time(takes_s)
        return answer

    monkeypatch.setattr(store.messages, "renew", renew_slowly)
    held = keeping.claim()
    keeping.pass_time(SETTINGS.renew_every_s)
    keeping.keeper.turn()
    assert keeping.renewed == [held]
    lease = keeping.keeper.find(held[0])
    assert lease is not None
    keeping.pass_time(SETTINGS.lease_s - SETTINGS.lease_margin_s - takes_s - 0.001)
    assert lease.trusted(keeping.clock)
    keeping.pass_time(0.001)
    assert not lease.trusted(keeping.clock)


@pytest.mark.parametrize("clock", ["monotonic_s", "wall_s"])
def test_a_lease_ends_by_the_clock_that_is_first_and_is_never_revived(store: Store, clock: str) -> None:
    keeping = Keeping(store)
    message_id, fence = keeping.claim()
    setattr(keeping.clock, clock, getattr(keeping.clock, clock) + SETTINGS.lease_s)
    keeping.keeper.turn()
    assert keeping.lost == [(message_id, fence, "expired")]
    assert not keeping.renewed, "the database would still have renewed it"
    assert not keeping.keeper.held()


def test_a_lease_that_somebody_else_has_now_is_lost_at_once(store: Store) -> None:
    keeping = Keeping(store)
    message_id, fence = keeping.claim()
    store.messages.release([(message_id, fence)])
    assert keeping.reclaim(OTHER) == (message_id, fence + 1)
    keeping.pass_time(SETTINGS.renew_every_s)
    keeping.keeper.turn()
    assert keeping.lost == [(message_id, fence, "superseded")]


def test_a_message_that_comes_back_to_its_holder_ends_the_lease_it_had(store: Store) -> None:
    keeping = Keeping(store)
    message_id, fence = keeping.claim()
    store.messages.release([(message_id, fence)])
    again = keeping.reclaim()
    assert keeping.lost == [(message_id, fence, "superseded")]
    assert [(lease.message_id, lease.fence) for lease in keeping.keeper.held()] == [again]


def test_each_lease_is_judged_by_itself(store: Store) -> None:
    keeping = Keeping(store)
    kept = keeping.claim()
    keeping.pass_time(0.001)
    taken = keeping.claim()
    store.messages.release([taken])
    keeping.reclaim(OTHER)
    keeping.pass_time(SETTINGS.renew_every_s)
    keeping.keeper.turn()
    assert keeping.renewed == [kept]
    assert keeping.lost == [(*taken, "superseded")]


def test_what_was_let_go_is_neither_renewed_nor_lost(store: Store) -> None:
    keeping = Keeping(store)
    held = keeping.claim()
    keeping.keeper.let_go([held[0]])
    store.messages.complete([held])
    keeping.pass_time(SETTINGS.renew_every_s)
    keeping.keeper.turn()
    assert not keeping.renewed
    assert not keeping.lost


def test_no_answer_changes_nothing_and_is_asked_for_again_without_delay() -> None:
    unreachable = open_store("postgresql://nobody@127.0.0.1:1/db", SETTINGS)
    clock = ManualClock()
    lost: list[int] = []
    keeper = LeaseKeeper(
        unreachable, ME, SETTINGS, clock=clock, on_lost=lambda lease, reason: lost.append(lease.message_id)
    )
    keeper.hold([Lease(1, 1, trusted_until(clock.now(), SETTINGS))])
    clock.advance(SETTINGS.renew_every_s)
    assert keeper.turn() < 1
    assert [lease.message_id for lease in keeper.held()] == [1]
    clock.advance(SETTINGS.lease_s)
    keeper.turn()
    assert lost == [1]
    unreachable.close()


def test_what_is_done_beside_renewals_never_costs_one(store: Store) -> None:
    keeping = Keeping(store)
    held = keeping.claim()

    def fail() -> float:
        store.queues.bind("", "", "", "no such queue")
        return 0.0

    keeping.keeper.beside = fail
    keeping.pass_time(SETTINGS.renew_every_s)
    with pytest.raises(Exception, match="no such queue"):
        keeping.keeper.turn()
    assert keeping.renewed == [held]
