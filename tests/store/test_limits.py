"""Limits hold over all hosts, however claims end; what is limited waits at its gate and nowhere else."""

from __future__ import annotations

import pytest

from atomic_celery.fleet import scaling
from atomic_celery.fleet.policy import Policy
from atomic_celery.gate import choose
from atomic_celery.store.limits import UNUSED_MS
from atomic_celery.store.records import Gated, Held, Holder, Limit, Survey
from tests.store.desk import BOB, LEASE_MS, Desk
from tests.store.hosts import ONE, THREE_A_MINUTE, TWO, Host, limited
from tests.support.hosts import new_host


@pytest.fixture
def alice(desk: Desk) -> Host:
    """A holder."""
    return Host(desk)


@pytest.fixture
def bob(desk: Desk) -> Host:
    """Another one."""
    return Host(desk, BOB)


def test_no_more_run_than_may(desk: Desk, alice: Host, bob: Host) -> None:
    limited(desk, TWO, 5)

    assert len(alice.claim()) == 2
    assert bob.claim() == []
    assert alice.claim() == []


def test_one_that_is_over_makes_room_in_the_turn_that_ends_it(desk: Desk, alice: Host) -> None:
    ids = limited(desk, ONE, 3)
    [first] = alice.claim()

    turn = alice.turn([first.held])

    assert turn.settled == {first.id}
    assert [each.id for each in turn.claimed] == [ids[1]]


@pytest.mark.parametrize("end", ["complete", "release", "crash", "delay", "bury", "delete", "requeue", "lapse"])
def test_however_a_claim_ends_there_is_room_again(desk: Desk, alice: Host, bob: Host, end: str) -> None:
    limited(desk, ONE, 2)
    [first] = alice.claim()
    assert bob.claim() == []

    if end == "lapse":
        desk.pass_ms(LEASE_MS + 1000)
        desk.messages.reclaim()
    else:
        _end(desk, first.held, end)

    assert len(bob.claim()) == 1
    assert alice.claim() == []


def test_a_claim_that_goes_with_its_queue_makes_room(desk: Desk, alice: Host) -> None:
    other = Desk(desk.store, "other")
    limited(other, ONE)
    limited(desk, ONE)
    assert len(Host(other).claim()) == 1
    assert alice.claim() == []

    desk.store.queues.delete("other")

    assert len(alice.claim()) == 1


def _end(desk: Desk, held: Held, how: str) -> None:
    match how:
        case "complete":
            assert desk.messages.complete([held]) == {held[0]}
        case "release":
            assert desk.messages.release([held]) == {held[0]}
        case "crash":
            assert desk.messages.crash([held], "killed")
        case "delay":
            assert desk.messages.delay(held, desk.now_ms + 60_000)
        case "bury":
            assert desk.messages.bury([held[0]], "bad luck") == {held[0]}
        case "requeue":
            assert desk.messages.requeue([held[0]]) == {held[0]}
        case _:
            assert desk.messages.delete([held[0]]) == {held[0]}


@pytest.mark.parametrize("way", ["release", "crash", "requeue", "lapse", "delay"])
def test_what_comes_back_waits_at_its_gate(desk: Desk, alice: Host, way: str) -> None:
    limited(desk, ONE)
    [claimed] = alice.claim()

    if way == "lapse":
        desk.pass_ms(LEASE_MS + 1000)
        desk.messages.reclaim()
    elif way == "delay":
        desk.messages.delay(claimed.held, desk.now_ms)
        desk.messages.promote()
    else:
        _end(desk, claimed.held, way)

    assert desk.state(claimed.id) == "limited"
    assert desk.claim() == []
    [again] = alice.claim()
    assert again.fence == claimed.fence + 1
    assert again.crashes == (1 if way in ("crash", "lapse") else 0)


def test_one_that_is_due_waits_at_its_gate_and_for_its_time_nowhere_else(desk: Desk, alice: Host) -> None:
    [message_id] = limited(desk, ONE, due_ms=desk.now_ms + 1000)
    assert desk.state(message_id) == "delayed"
    desk.pass_ms(1000)

    assert desk.messages.promote() == (1, None)

    assert desk.state(message_id) == "limited"
    assert [each.id for each in alice.claim()] == [message_id]


def test_a_rate_holds_in_any_window(desk: Desk, alice: Host, bob: Host) -> None:
    limited(desk, THREE_A_MINUTE, 8)
    first = alice.claim(2)
    desk.pass_ms(50_000)
    second = bob.claim()
    assert (len(first), len(second)) == (2, 1)

    desk.pass_ms(9_900)
    assert alice.claim() == []
    desk.pass_ms(200)
    third = alice.claim()
    assert len(third) == 2
    assert bob.claim() == []


def test_a_rate_says_when_it_has_room_again(desk: Desk) -> None:
    limited(desk, THREE_A_MINUTE, 5)
    Host(desk).claim()
    desk.pass_ms(20_000)

    survey = desk.store.limits.survey(desk.lanes(), 10)

    assert survey.gated == []
    assert survey.wait_ms is not None
    assert 40_000 <= survey.wait_ms <= 40_060  # to the thousandth part of its period, and never too early


def test_a_start_counts_again_if_it_was_in_vain(desk: Desk, alice: Host) -> None:
    limited(desk, THREE_A_MINUTE, 3)
    desk.messages.release([each.held for each in alice.claim()])

    assert alice.claim() == []


def test_who_is_not_limited_does_not_wait(desk: Desk, alice: Host) -> None:
    limited(desk, ONE, 3)
    free = [desk.publish() for _ in range(3)]

    assert len(alice.claim()) == 4
    assert all(desk.state(message_id) == "running" for message_id in free)


def test_a_full_lane_hides_no_other(desk: Desk, alice: Host) -> None:
    limited(desk, ONE, 150)
    alice.claim()
    keys = [Limit(f"two:{number}", "two", max_running=1) for number in range(120)]
    for key in keys:
        limited(desk, key, 2)

    claimed = alice.claim(200)

    assert len(claimed) == 120


def test_a_priority_counts_at_the_gates_and_among_the_ready(desk: Desk, alice: Host) -> None:
    [low] = limited(desk, TWO, priority=0)
    [high] = limited(desk, TWO, priority=9)
    ready = desk.publish(priority=5)

    order = []
    for _ in range(3):
        [claimed] = alice.claim(1)
        order.append(claimed.id)
        desk.messages.complete([claimed.held])

    assert order == [ready, high, low]  # the first turn has not heard of the gate yet


def test_a_million_at_the_gates_and_a_million_outside_take_turns(desk: Desk, alice: Host) -> None:
    """Neither keeps the other waiting."""
    limited(desk, Limit("wide", "wide", max_running=1000), 20)
    for _ in range(20):
        desk.publish()
    alice.turn(limit=0)
    alice.turn(limit=2)

    states = []
    for _ in range(6):
        [claimed] = alice.turn(limit=1).claimed
        states.append(claimed.limit_id is not None)

    assert sorted(states) == [False, False, False, True, True, True]


def test_lanes_take_turns(desk: Desk, alice: Host) -> None:
    wide = [Limit(name, name, max_running=1000) for name in ("a", "b", "c")]
    for limit in wide:
        limited(desk, limit, 30)
    alice.turn(limit=0)

    claimed = alice.claim(9)

    assert sorted(each.limit_id or 0 for each in claimed) == sorted(
        3 * sorted({each.limit_id or 0 for each in claimed})
    )


def test_a_draining_host_is_admitted_nowhere(desk: Desk) -> None:
    holder = Holder("h1", "b", is_host=True)
    desk.store.hosts.register(new_host(holder.id, holder.boot))
    limited(desk, ONE)
    desk.store.hosts.drain("h1", "down", "somebody")

    assert Host(desk, holder).claim() == []
    assert len(desk.store.reads.messages()) == 1


def test_the_last_to_say_what_a_limit_is_is_right(desk: Desk, alice: Host) -> None:
    limited(desk, ONE, 3)
    assert len(alice.claim()) == 1
    limited(desk, Limit("one", "one", max_running=3))

    assert len(alice.claim()) == 2


def test_all_keys_of_a_task_follow_it(desk: Desk, alice: Host) -> None:
    for key in ("a", "b"):
        limited(desk, Limit(f"t:{key}", "t", max_running=1), 5)
    assert len(alice.claim()) == 2

    assert desk.store.limits.redeclare(Limit("t", "t", max_running=2)) == 2

    assert len(alice.claim()) == 2


def test_what_runs_already_counts_when_a_limit_begins_to_count_it(desk: Desk, alice: Host) -> None:
    limited(desk, Limit("t", "t", rate_starts=100, rate_ms=1000), 5)
    assert len(alice.claim(3)) == 3

    desk.store.limits.redeclare(Limit("t", "t", max_running=3))

    assert alice.claim() == []


def test_a_host_that_knows_better_sends_a_message_to_its_gate(desk: Desk, alice: Host) -> None:
    desk.publish()
    limited(desk, ONE)
    [theirs] = desk.claim()
    assert len(alice.claim()) == 1

    assert desk.store.limits.regate(theirs.held, ONE)

    assert desk.state(theirs.id) == "limited"
    assert not desk.store.limits.regate(theirs.held, ONE)
    assert alice.claim() == []


def test_a_limit_that_no_message_has_goes_after_a_day(desk: Desk, alice: Host) -> None:
    limited(desk, ONE)
    limited(desk, TWO)
    desk.messages.complete([each.held for each in alice.claim(1)])
    desk.pass_ms(UNUSED_MS + 1)

    assert desk.store.limits.expire(100) == 1
    assert len(alice.claim()) == 1


def test_purging_and_deleting_a_queue_reach_the_gates(desk: Desk) -> None:
    limited(desk, ONE, 3)
    desk.publish()
    assert desk.store.queues.size("celery") == 4
    assert desk.store.queues.purge("celery") == 4
    limited(desk, ONE, 2)
    assert desk.store.queues.delete("celery") == 2
    assert desk.traces_of_the_gone() == []


def test_who_looks_sees_what_a_message_waits_for(desk: Desk) -> None:
    [message_id] = limited(desk, Limit("shop.pay:tenant-7", "shop.pay", max_running=1))

    view = desk.store.reads.message(message_id)
    [depth] = desk.store.reads.depths()

    assert view is not None
    assert (view.state, view.reason) == ("limited", "shop.pay:tenant-7")
    assert (depth.ready, depth.limited) == (0, 1)


def _gated(number: int, lane: str, room: int = 100, priority: int = 0) -> Gated:
    return Gated(number, priority, lane, {hash(lane) % 1000: room})


def test_who_is_chosen_leaves_the_others_their_share() -> None:
    gated = [_gated(number, "a") for number in range(10)]

    def count(ready: int, limit: int, *, odd: bool) -> int:
        return len(choose(Survey(gated, {0: ready}, None, None), limit, odd=odd, last_lane=""))

    assert count(10, 1, odd=True) == 1
    assert count(10, 1, odd=False) == 0
    assert count(10, 4, odd=False) == 2
    assert count(1, 4, odd=False) == 3
    assert count(0, 20, odd=False) == 10


def test_lanes_begin_behind_the_one_that_was_last() -> None:
    gated = [_gated(number, lane) for number, lane in enumerate("aabbcc")]

    chosen = choose(Survey(gated, {}, None, None), 4, odd=True, last_lane="a")

    assert [each.lane for each in chosen] == ["b", "c", "a", "b"]


def test_as_much_limited_work_counts_as_more_hosts_could_start(desk: Desk, alice: Host) -> None:
    limited(desk, TWO, 5)
    limited(desk, Limit("wide", "wide", max_running=100), 3)
    desk.publish()
    assert scaling.read(desk.store, Policy()).demand == 2 + 3 + 1

    alice.claim(1)
    alice.claim(4)

    signal = scaling.read(desk.store, Policy())
    assert signal.running == 5
    assert signal.demand == 6
