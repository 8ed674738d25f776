"""Roots: admitted, paid for, paused and cancelled as one; exact over all hosts, and cheap for who has none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count as counting

import pytest

from atomic_celery import errors
from atomic_celery.fleet import scaling
from atomic_celery.fleet.policy import Policy
from atomic_celery.store.messages import CROWD
from atomic_celery.store.roots import UNUSED_MS, RootTerms, RootView
from tests.store.desk import ALICE, BOB, LEASE_MS, Desk
from tests.store.hosts import Host

_NUMBERS = counting()


@pytest.fixture
def alice(desk: Desk) -> Host:
    """A holder."""
    return Host(desk, ALICE)


@pytest.fixture
def bob(desk: Desk) -> Host:
    """Another one."""
    return Host(desk, BOB)


def children(desk: Desk, root: str, count: int = 5, **facts: object) -> list[int]:
    """Publish children of a root, one by one."""
    return [desk.publish(task_id=f"{root}-{next(_NUMBERS)}", root_id=root, **facts) for _ in range(count)]


def seen(desk: Desk, root: str = "r") -> RootView:
    """Read a root that has a row."""
    view = desk.store.roots.get(root)
    assert view is not None
    assert [view] == [each for each in desk.store.roots.list() if each.id == root]
    return view


def test_a_lone_message_has_no_row(desk: Desk) -> None:
    desk.publish(task_id="t", root_id="t")

    assert desk.store.roots.list() == []
    assert len(desk.claim()) == 1


def test_no_more_of_a_root_run_than_may(desk: Desk, alice: Host, bob: Host) -> None:
    desk.store.roots.set("r", RootTerms(max_running=2))
    children(desk, "r")

    claimed = alice.claim()
    assert len(claimed) == 2
    assert bob.claim() == []
    desk.messages.complete([claimed[0].held])
    assert len(bob.claim()) == 1
    view = desk.store.roots.get("r")
    assert view is not None
    assert (view.state, view.running, view.waiting, view.started, view.max_running) == ("running", 2, 2, 3, 2)


def test_a_root_that_is_declared_later_counts_what_runs_and_what_waits(desk: Desk, alice: Host) -> None:
    children(desk, "r", 4)
    delayed = desk.publish(task_id="d", root_id="r", due_ms=desk.now_ms + 1000)
    desk.publish(task_id="r", root_id="r")
    running = desk.claim(limit=1)

    desk.store.roots.set("r", RootTerms(max_running=2))

    assert len(alice.claim()) == 1
    desk.pass_ms(1000)
    desk.messages.promote()
    assert desk.state(delayed) == "limited"
    desk.messages.complete([each.held for each in running])
    assert len(alice.claim()) == 1
    assert desk.store.roots.unfinished("r").total == 5


def test_of_a_paused_root_nothing_starts(desk: Desk, alice: Host) -> None:
    children(desk, "r", 3)
    [running] = desk.claim(limit=1)

    assert desk.store.roots.turn("r", "paused")
    assert not desk.store.roots.turn("r", "paused")
    children(desk, "r", 5)

    assert alice.claim() == []
    assert desk.messages.complete([running.held]) == {running.id}
    assert desk.store.roots.turn("r", "running")
    assert len(alice.claim()) == 7


def test_a_cancelled_root_comes_out_as_revoked(desk: Desk, alice: Host) -> None:
    desk.store.roots.set("r", RootTerms(max_running=1))
    children(desk, "r", 3)
    [running] = alice.claim()

    assert desk.store.roots.turn("r", "cancelled", grace_ms=5000)

    rest = alice.claim()
    assert len(rest) == 2
    assert all(claimed.revoked for claimed in rest)
    assert not running.revoked
    late = children(desk, "r", 4)[-1]
    assert [claimed.revoked for claimed in alice.claim() if claimed.id == late] == [True]
    assert desk.store.roots.cancelled_here(ALICE)[running.held] is False
    desk.pass_ms(5000)
    assert desk.store.roots.cancelled_here(ALICE)[running.held] is True
    assert not desk.store.roots.turn("r", "running")


def test_a_budget_of_children_is_exact(desk: Desk, alice: Host, bob: Host) -> None:
    desk.store.roots.set("r", RootTerms(children=3))
    children(desk, "r")

    assert len(alice.claim(2)) + len(bob.claim()) == 3
    view = desk.store.roots.get("r")
    assert view is not None
    assert view.state == "budget_exceeded"

    desk.store.roots.set("r", RootTerms(children=4))
    assert len(bob.claim()) == 1


def test_what_has_begun_needs_no_second_place_in_the_budget(desk: Desk, alice: Host, bob: Host) -> None:
    """Given back, crashed, retried at once or later, requeued: it is one child, and runs to its end."""
    desk.store.roots.set("r", RootTerms(children=1))
    first, *_ = children(desk, "r", 3, priority=0)
    children(desk, "r", 2, priority=9)
    desk.messages.bury([first], "to let another begin")
    [claimed] = alice.claim()
    assert (claimed.priority, claimed.fence) == (9, 1)

    desk.messages.release([claimed.held])
    assert scaling.read(desk.store, Policy()).demand == 1  # of four that wait one may begin
    [claimed] = bob.claim()
    desk.messages.crash([claimed.held], "it died")
    [claimed] = alice.claim()
    desk.messages.requeue([claimed.id])
    [claimed] = alice.claim()
    for due_ms in (None, desk.now_ms + 1000):
        desk.messages.supersede(claimed.held, desk.new(task_id=claimed.task_id, root_id="r", due_ms=due_ms))
        desk.messages.complete([claimed.held])
        view = seen(desk)
        assert (view.started, view.finished, view.running) == (1, 0, 0)
        assert (view.waiting_again, view.retrying) == ((1, 0) if due_ms is None else (0, 1))
        if due_ms is not None:
            assert alice.claim() == []
            desk.pass_ms(1000)
            desk.messages.promote()
        [claimed] = alice.claim()
        assert claimed.fence == 1
    desk.messages.complete([claimed.held])

    view = seen(desk)
    assert (view.state, view.started, view.finished, view.waiting) == ("budget_exceeded", 1, 1, 3)
    assert alice.claim() == []


def test_new_children_and_old_ones_share_what_may_run(desk: Desk, alice: Host, bob: Host) -> None:
    desk.store.roots.set("r", RootTerms(children=4, max_running=3))
    children(desk, "r", 9)
    begun = alice.claim()
    assert len(begun) == 3
    desk.messages.release([each.held for each in begun])

    again = [*alice.claim(), *bob.claim()]
    assert len(again) == 3
    assert seen(desk).started == 3 + sum(each.fence == 1 for each in again)
    for _ in range(4):
        desk.messages.complete([each.held for each in again])
        again = [*alice.claim(), *bob.claim()]
    view = seen(desk)
    assert (view.started, view.finished, view.running, view.waiting) == (4, 4, 0, 5)


@pytest.mark.parametrize("retried", [False, True])
def test_counts_of_what_begins_again_stop_at_the_bound(desk: Desk, alice: Host, retried: bool) -> None:
    desk.store.roots.set("r", RootTerms())
    children(desk, "r", 5)
    ended, *again = alice.claim()
    desk.messages.complete([ended.held])
    if retried:
        for each in again:
            desk.messages.supersede(each.held, desk.new(task_id=each.task_id, root_id="r", due_ms=desk.now_ms + 1000))
        desk.messages.complete([each.held for each in again])
    else:
        desk.messages.release([each.held for each in again])

    def counted(bound: int) -> tuple[int, int, int, bool]:
        [view] = desk.store.roots.list(bound=bound)
        return view.waiting_again, view.retrying, view.finished, view.exact

    assert counted(4) == ((0, 4) if retried else (4, 0)) + (1, True)
    assert counted(2) == ((0, 3) if retried else (3, 0)) + (2, False)


def test_what_began_before_there_was_a_row_is_counted_with_it(desk: Desk, alice: Host) -> None:
    desk.publish(task_id="later", root_id="r", due_ms=desk.now_ms + 5000)
    children(desk, "r", 6)
    released, crashed, running, retried, buried = desk.claim(limit=5)
    desk.messages.release([released.held])
    desk.messages.crash([crashed.held], "it died")
    desk.messages.supersede(retried.held, desk.new(task_id=retried.task_id, root_id="r", due_ms=desk.now_ms + 1000))
    desk.messages.complete([retried.held])
    desk.messages.bury([buried.id], "why")

    desk.store.roots.set("r", RootTerms(children=5))

    view = seen(desk)
    assert (view.started, view.running, view.waiting_again, view.retrying, view.finished) == (5, 1, 2, 1, 1)
    assert (view.waiting, view.delayed) == (3, 2)
    desk.pass_ms(1000)
    desk.messages.promote()
    claimed = alice.claim()
    assert {each.id for each in claimed} > {released.id, crashed.id}
    desk.messages.complete([running.held, *(each.held for each in claimed)])
    view = seen(desk)
    assert (view.started, view.finished, view.waiting, view.running) == (5, 5, 1, 0)


def test_a_budget_is_spent_under_the_fence(desk: Desk, alice: Host) -> None:
    desk.store.roots.set("r", RootTerms(cost=10.0, tokens=100))
    children(desk, "r", 3)
    [claimed] = alice.claim(1)

    assert desk.store.roots.spend(claimed.held, cost=9.5, tokens=5) == "r"
    assert len(alice.claim(1)) == 1
    desk.store.roots.spend(claimed.held, cost=0.5, tokens=0)
    view = desk.store.roots.get("r")

    assert view is not None
    assert (view.state, view.spent_cost, view.spent_tokens) == ("budget_exceeded", 10.0, 5)
    assert alice.claim() == []
    with pytest.raises(errors.LeaseLost, match="while spending"):
        desk.store.roots.spend((claimed.id, claimed.fence + 1), cost=1, tokens=1)
    desk.pass_ms(LEASE_MS)
    with pytest.raises(errors.LeaseLost):
        desk.store.roots.spend(claimed.held, cost=1, tokens=1)


def test_who_has_no_row_spends_nothing(desk: Desk) -> None:
    desk.publish(task_id="t", root_id="t")

    assert desk.store.roots.spend(desk.claim_one().held, cost=1, tokens=1) is None


def test_a_pause_does_not_count_as_time(desk: Desk, alice: Host) -> None:
    desk.store.roots.set("r", RootTerms(duration_ms=10_000))
    children(desk, "r")
    desk.pass_ms(6000)
    desk.store.roots.turn("r", "paused")
    desk.pass_ms(60_000)
    desk.store.roots.turn("r", "running")
    desk.pass_ms(3999)
    assert len(alice.claim(1)) == 1
    desk.pass_ms(1)

    assert alice.claim() == []
    view = desk.store.roots.get("r")
    assert view is not None
    assert (view.state, view.ran_ms) == ("budget_exceeded", 10_000)


def test_one_is_told_once_of_what_is_spent(desk: Desk, alice: Host) -> None:
    desk.store.roots.set("r", RootTerms(children=5))
    children(desk, "r")
    assert desk.store.roots.reached() == []
    for starts, percent in ((4, 80), (1, 100)):
        alice.claim(starts)
        assert desk.store.roots.reached() == [("r", percent)]
        with desk.undone():
            assert desk.store.roots.tell("r", percent)
        assert desk.store.roots.reached() == [("r", percent)]
        assert desk.store.roots.tell("r", percent)
        assert not desk.store.roots.tell("r", percent)
        assert desk.store.roots.reached() == []


def test_a_crowd_keeps_nobody_waiting(desk: Desk, alice: Host) -> None:
    """Neither a lone task nor another root of the same priority waits for a great many children."""
    desk.messages.publish([desk.new(task_id=f"c{number}", root_id="crowd") for number in range(CROWD)])
    lone = desk.publish(task_id="lone", root_id="lone")
    desk.messages.publish([desk.new(task_id=f"o{number}", root_id="other") for number in range(CROWD)])
    alice.turn(limit=0)

    order = [claimed.task_id or "" for _ in range(9) for claimed in alice.claim(1)]

    assert "lone" in order[:2]
    assert desk.state(lone) == "running"
    rest = [name[0] for name in order if name != "lone"]
    assert rest == ["c", "o"] * 4 or rest == ["o", "c"] * 4


@pytest.mark.parametrize("at_once", [1, 7])
def test_a_crowd_that_comes_one_by_one_keeps_nobody_waiting(desk: Desk, alice: Host, at_once: int) -> None:
    """As a task does that sends a great many children in a loop, or in many small groups."""
    for number in range(0, 2 * CROWD, at_once):
        family = [desk.new(task_id=f"c{number}-{child}", root_id="crowd") for child in range(at_once)]
        desk.messages.publish(family)
    desk.publish(task_id="lone", root_id="lone")
    desk.publish(task_id="o1", root_id="other")
    alice.turn(limit=0)

    order = [claimed.task_id for _ in range(5) for claimed in alice.claim(1)]

    assert {"lone", "o1"} < set(order)
    assert seen(desk, "crowd").waiting > 2 * CROWD - 5
    assert desk.store.roots.get("other") is None


def test_a_crowd_that_was_forgotten_is_one_again(desk: Desk, alice: Host) -> None:
    def publish(name: str) -> None:
        for number in range(CROWD):
            desk.publish(task_id=f"{name}{number}", root_id="crowd")

    publish("a")
    desk.messages.complete([claimed.held for claimed in alice.claim(CROWD)])
    desk.pass_ms(UNUSED_MS + 1)
    assert desk.store.roots.forget(10) == 1
    publish("b")

    assert seen(desk, "crowd").waiting == CROWD


def test_a_crowd_is_forgotten_when_it_is_gone(desk: Desk, alice: Host) -> None:
    desk.messages.publish([desk.new(task_id=f"c{number}", root_id="crowd") for number in range(CROWD)])
    desk.pass_ms(UNUSED_MS + 1)
    assert desk.store.roots.forget(10) == 0
    desk.messages.complete([claimed.held for claimed in alice.claim(CROWD)])

    assert desk.store.roots.forget(10) == 1
    assert desk.store.roots.list() == []


def test_what_is_published_while_its_root_is_forgotten_runs_all_the_same(postgres_desk: Desk) -> None:
    desk = postgres_desk
    desk.store.roots.open("crowd")
    desk.pass_ms(UNUSED_MS + 1)
    alice = Host(desk, ALICE)

    with ThreadPoolExecutor(1) as other, desk.store.transaction():
        message_id = desk.publish(task_id="late", root_id="crowd")
        assert other.submit(desk.store.roots.forget, 10).result(timeout=60) == 1

    assert desk.state(message_id) == "limited"
    assert scaling.read(desk.store, Policy()).demand == 1
    assert [claimed.id for claimed in alice.claim()] == [message_id]


def test_roots_are_read_a_page_at_a_time(desk: Desk) -> None:
    for number in range(5):
        desk.store.roots.set(f"r{number}", RootTerms(labels={"team": "a"}))
        desk.pass_ms(1)
    desk.store.roots.turn("r1", "paused")

    first = desk.store.roots.list(limit=2)
    last = first[-1]
    rest = desk.store.roots.list(before=(last.created_ms, last.id))

    assert [view.id for view in [*first, *rest]] == ["r4", "r3", "r2", "r1", "r0"]
    assert [view.id for view in desk.store.roots.list(state="paused")] == ["r1"]
    assert first[0].labels == {"team": "a"}


@pytest.mark.parametrize("terms", [{"max_running": 0}, {"cost": -1.0}, {"children": 0}, {"warn_at_percent": 0}])
def test_terms_that_make_no_sense_are_refused(terms: dict[str, float]) -> None:
    with pytest.raises(errors.ConfigError, match=next(iter(terms))):
        RootTerms(**terms)  # type: ignore[arg-type]
