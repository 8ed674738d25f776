"""Only the live fence settles, renews or supersedes (I3); what is completed never runs again (I4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from atomic_celery import errors
from atomic_celery.store.records import Claimed, Holder, Renewal
from tests.store.desk import ALICE, BOB, LEASE_MS, Desk

Settle = Callable[[Desk, Claimed], bool]


def _complete(desk: Desk, claimed: Claimed) -> bool:
    return bool(desk.messages.complete([claimed.held]))


def _release(desk: Desk, claimed: Claimed) -> bool:
    return bool(desk.messages.release([claimed.held]))


def _delay(desk: Desk, claimed: Claimed) -> bool:
    return desk.messages.delay(claimed.held, desk.now_ms + 1000)


def _crash(desk: Desk, claimed: Claimed) -> bool:
    return bool(desk.messages.crash([claimed.held], "killed"))


def _renew(desk: Desk, claimed: Claimed) -> bool:
    return bool(desk.messages.renew(ALICE, [claimed.held], LEASE_MS).renewed)


def _supersede(desk: Desk, claimed: Claimed) -> bool:
    try:
        return bool(desk.messages.supersede(claimed.held, desk.new("next")))
    except errors.LeaseLost:
        return False


SETTLES = [_complete, _release, _delay, _crash]
VERBS = [*SETTLES, _renew, _supersede]


@pytest.fixture(params=VERBS, ids=lambda verb: verb.__name__[1:])
def verb(request: pytest.FixtureRequest) -> Settle:
    found: Settle = request.param
    return found


@pytest.fixture(params=SETTLES, ids=lambda verb: verb.__name__[1:])
def settle(request: pytest.FixtureRequest) -> Settle:
    found: Settle = request.param
    return found


def test_who_holds_a_message_is_obeyed(desk: Desk, verb: Settle) -> None:
    desk.publish()
    assert verb(desk, desk.claim_one())


def test_a_paused_holder_is_not_obeyed_when_its_message_was_reclaimed(desk: Desk, verb: Settle) -> None:
    message_id = desk.publish()
    paused = desk.claim_one(ALICE)
    desk.pass_ms(LEASE_MS)
    assert [report.id for report in desk.messages.reclaim()] == [message_id]
    assert not verb(desk, paused)
    awake = desk.claim_one(BOB)

    assert not verb(desk, paused)
    assert desk.state(message_id) == "running"
    assert desk.messages.complete([awake.held]) == {message_id}


def test_a_lease_that_ran_out_is_not_revived_by_its_own_holder(desk: Desk, verb: Settle) -> None:
    message_id = desk.publish()
    paused = desk.claim_one(ALICE)
    desk.pass_ms(LEASE_MS)
    assert not verb(desk, paused)
    assert desk.state(message_id) == "running"


def test_a_lease_holds_until_its_last_millisecond(desk: Desk, verb: Settle) -> None:
    desk.publish()
    held = desk.claim_one(ALICE)
    desk.pass_ms(LEASE_MS - 1)
    assert desk.messages.reclaim() == []
    assert verb(desk, held)


def test_nothing_settles_twice(desk: Desk, settle: Settle) -> None:
    desk.publish()
    held = desk.claim_one()
    assert settle(desk, held)
    for again in SETTLES:
        assert not again(desk, held)


def test_the_fence_of_the_next_claim_is_no_proof_for_the_last_one(desk: Desk, settle: Settle) -> None:
    desk.publish()
    first = desk.claim_one(ALICE)
    desk.messages.release([first.held])
    second = desk.claim_one(BOB)
    assert not settle(desk, first)
    assert second.held == (first.id, first.fence + 1)
    assert settle(desk, second)


def test_a_completed_message_is_gone_with_its_history(desk: Desk) -> None:
    message_id = desk.publish(task_id="t")
    desk.messages.crash([desk.claim_one().held], "killed")
    held = desk.claim_one()
    assert desk.messages.complete([held.held]) == {message_id}
    assert desk.state(message_id) is None
    assert desk.store.reads.crashes(message_id) == []
    assert desk.claim(BOB) == []


def test_each_of_several_is_judged_by_itself(desk: Desk) -> None:
    for n in range(3):
        desk.publish(str(n))
    mine, given_back, stale = desk.claim()
    desk.messages.release([given_back.held])
    held = [mine.held, given_back.held, (stale.id, stale.fence + 1), (999, 1)]
    assert desk.messages.complete(held) == {mine.id}
    assert [desk.state(message.id) for message in (mine, given_back, stale)] == [None, "ready", "running"]


def test_a_released_message_is_again_first_in_line(desk: Desk) -> None:
    for name in "abc":
        desk.publish(name)
    first, second = desk.claim(limit=2)
    assert desk.messages.release([second.held, first.held]) == {first.id, second.id}
    again = desk.claim(BOB)
    assert [(message.payload, message.fence, message.crashes) for message in again] == [
        ("a", 2, 0),
        ("b", 2, 0),
        ("c", 1, 0),
    ]


def test_renewing_pushes_the_lease_out_and_nothing_else(desk: Desk) -> None:
    message_id = desk.publish()
    held = desk.claim_one()
    before = desk.store.reads.message(message_id)
    assert before is not None
    desk.pass_ms(10_000)
    assert desk.messages.renew(ALICE, [held.held], LEASE_MS).renewed == {message_id}
    after = desk.store.reads.message(message_id)
    assert after is not None
    assert after.lease_until_ms == desk.now_ms + LEASE_MS
    assert (after.fence, after.holder, after.claimed_ms) == (before.fence, before.holder, before.claimed_ms)


def test_a_renewal_says_of_each_lease_what_became_of_it(desk: Desk) -> None:
    for _ in range(3):
        desk.publish()
    kept, settled, refenced = desk.claim()
    desk.messages.complete([settled.held])
    desk.messages.release([refenced.held])
    renewal = desk.messages.renew(ALICE, [kept.held, settled.held, refenced.held], LEASE_MS)
    assert renewal == Renewal(frozenset({kept.id}), frozenset(), frozenset({settled.id, refenced.id}))
    assert desk.messages.renew(ALICE, [], LEASE_MS).renewed == set()


@pytest.mark.parametrize("stranger", [BOB, Holder("alice", "another-boot")], ids=["another", "another-boot"])
def test_nobody_renews_what_another_boot_holds(desk: Desk, stranger: Holder) -> None:
    desk.publish()
    held = desk.claim_one(ALICE)
    assert desk.messages.renew(stranger, [held.held], LEASE_MS).lost == {held.id}
