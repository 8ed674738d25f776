"""The scaling signal: the function, row by row, and the read that feeds it."""

from __future__ import annotations

import pytest

from atomic_celery import errors
from atomic_celery.config import Settings
from atomic_celery.fleet import scaling
from atomic_celery.fleet.policy import Policy
from atomic_celery.fleet.scaling import Passing, compute, desired_hosts
from atomic_celery.store.hosts import HostReport
from atomic_celery.store.loads import Gate, Slots
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import Holder, Limit, NewMessage
from atomic_celery.store.roots import RootTerms
from tests.store.desk import LEASE_MS, Desk
from tests.store.hosts import ONE, THREE_A_MINUTE, TWO, Host, limited
from tests.store.test_hosts import host

NOBODY = Slots(0, 0, 0)


@pytest.mark.parametrize(
    ("demand", "min_hosts", "max_hosts", "per_host", "wanted"),
    [
        (0, 0, 10, 4, 0),
        (1, 0, 10, 4, 1),
        (4, 0, 10, 4, 1),
        (5, 0, 10, 4, 2),
        (1_000_000, 0, 10, 4, 10),
        (0, 2, 10, 4, 2),
        (9, 2, 10, 4, 3),
        (3, 0, 10, 1, 3),
        (5, 5, 5, 1, 5),
    ],
)
def test_the_hosts_wanted(demand: int, min_hosts: int, max_hosts: int, per_host: int, wanted: int) -> None:
    policy = Policy(min_hosts=min_hosts, max_hosts=max_hosts, workers_per_host=per_host)
    assert desired_hosts(demand, policy) == wanted


def test_the_signal_is_what_waits_and_what_runs_under_a_policy() -> None:
    signal = compute(7, 6, Slots(hosts=2, busy=6, idle=2), Policy(max_hosts=3))
    assert signal.document() == {
        "desiredHosts": 3,
        "desiredWorkers": 12,
        "demand": 13,
        "queueDepth": 7,
        "running": 6,
        "hosts": 2,
        "busySlots": 6,
        "idleSlots": 2,
        "minHosts": 0,
        "maxHosts": 3,
        "workersPerHost": 4,
        "oldestMs": 0,
        "exact": True,
    }


def test_a_policy_says_all_that_is_wrong_with_it() -> None:
    with pytest.raises(errors.ConfigError, match=r"min_hosts.*got -1; max_hosts.*got 0; workers_per_host.*got 0"):
        Policy(min_hosts=-1, max_hosts=0, workers_per_host=0)
    with pytest.raises(errors.ConfigError, match=r"must be at least 1 and no less than min_hosts \(5\), got 4"):
        Policy(min_hosts=5, max_hosts=4)
    with pytest.raises(errors.ConfigError, match="idle_drain_ms must not be below 0"):
        Policy(idle_drain_ms=-1)
    with pytest.raises(errors.ConfigError, match="boot_timeout_ms"):
        Policy(boot_timeout_ms=0)


def test_the_defaults_of_the_policy_are_the_settings() -> None:
    assert Policy.of(Settings()) == Policy()
    assert Policy.of(Settings(scale_up_queue_depth=7)).waiting_allowed == 7
    assert Policy(workers_per_host=9).waiting_allowed == 9


def read(desk: Desk, **options: object) -> scaling.Scaling:
    return scaling.read(desk.store, Policy(), **options)  # type: ignore[arg-type]


def gate(waiting: int, task: tuple[int, int] | None = None, root: tuple[int, int] | None = None) -> Gate:
    """One gate, with the id and the room of each of its limits."""
    return Gate(1, "", waiting, *(task or (None, None)), *(root or (None, None)))


def test_an_empty_fleet_wants_nothing(desk: Desk) -> None:
    signal = read(desk)
    assert (signal.desired_hosts, signal.demand, signal.hosts, signal.oldest_ms) == (0, 0, 0, 0)
    assert signal.exact


def test_ready_and_running_messages_are_demand(desk: Desk) -> None:
    for _ in range(6):
        desk.publish()
    desk.pass_ms(5000)
    desk.claim(limit=2)
    signal = read(desk)
    assert (signal.demand, signal.queue_depth, signal.running, signal.desired_hosts) == (6, 4, 2, 2)
    assert signal.oldest_ms == 5000


def test_a_message_whose_lease_ran_out_counts_as_running_until_it_is_reclaimed(desk: Desk) -> None:
    """With no host left there is nobody to reclaim it; the fleet must grow for it."""
    desk.publish()
    desk.claim()
    desk.pass_ms(LEASE_MS + 1)
    assert (read(desk).running, read(desk).desired_hosts) == (1, 1)
    desk.messages.reclaim()
    assert (read(desk).running, read(desk).queue_depth) == (0, 1)


def test_a_delayed_message_counts_from_the_moment_it_is_due_also_with_no_host_to_promote_it(desk: Desk) -> None:
    desk.publish(due_ms=desk.now_ms + 1000)
    assert read(desk).demand == 0
    desk.pass_ms(1500)
    signal = read(desk)
    assert (signal.queue_depth, signal.desired_hosts, signal.oldest_ms) == (1, 1, 500)


def test_mailboxes_and_reply_queues_are_no_work(desk: Desk) -> None:
    queue = desk.store.queues.declare(QueueSpec(name="reply", expires_ms=10_000))
    desk.messages.publish([NewMessage(queue.id, "answer")])
    assert read(desk).demand == 0


def test_the_work_of_some_queues_only(desk: Desk) -> None:
    other = desk.store.queues.declare(QueueSpec(name="other"))
    desk.messages.publish([NewMessage(other.id, "x")] * 3)
    desk.publish()
    assert read(desk).demand == 4
    assert read(desk, queues=["other"]).demand == 3
    assert read(desk, queues=["other", "celery"]).demand == 4
    assert read(desk, queues=["nobody's"]).demand == 0


def test_slots_of_hosts_that_reported_lately(desk: Desk) -> None:
    hosts = desk.store.hosts
    for name in ("h1", "h2", "h3"):
        hosts.register(host(name))
    desk.pass_ms(16_000)
    hosts.report("h1", "b1", HostReport(slots=4, busy=1, queues=()))
    hosts.report("h2", "b1", HostReport(slots=4, busy=3, queues=(), draining=True))
    signal = read(desk)
    assert (signal.hosts, signal.busy_slots, signal.idle_slots) == (2, 4, 3)


def test_counting_stops_at_a_bound_and_says_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "COUNT_BOUND", 5)
    desk.messages.publish([desk.new()] * 9)
    signal = scaling.read(desk.store, Policy(max_hosts=2, workers_per_host=3))
    assert (signal.desired_hosts, signal.exact, signal.queue_depth) == (2, False, 6)


def test_those_who_hold_something(desk: Desk) -> None:
    desk.publish()
    desk.publish()
    desk.claim(Holder("h1", "b1"))
    assert desk.store.loads.holders() == {"h1"}


@pytest.mark.parametrize(
    ("gates", "passed"),
    [
        ([], 0),
        ([gate(5)], 5),
        ([gate(5, (1, 3))], 3),
        ([gate(5, (1, 3), (2, 1))], 1),
        ([gate(5, (1, 0))], 0),
        ([gate(2, (1, 3), (8, 9)), gate(2, (1, 3), (9, 9))], 3),  # two workflows share the limit of a task
        ([gate(2, (1, 3), (8, 2)), gate(2, (2, 3), (8, 2))], 2),  # two tasks share that of a workflow
        ([gate(2, (1, -1))], 0),  # the limit was lowered
        ([gate(2, (1, -1)), gate(2, (1, -1), (8, 9)), gate(2, None, (8, 9))], 2),
    ],
)
def test_what_could_pass_the_gates(gates: list[Gate], passed: int) -> None:
    at_once, one_by_one = Passing(), Passing()
    at_once.add(gates)
    for each in gates:
        one_by_one.add([each])
    assert (at_once.count, one_by_one.count) == (passed, passed)


def test_what_waits_for_a_limit_counts_as_far_as_the_limit_lets_it(desk: Desk) -> None:
    alice = Host(desk)
    limited(desk, ONE, 5)
    limited(desk, TWO, 5)
    limited(desk, THREE_A_MINUTE, 5)
    signal = read(desk)
    assert (signal.demand, signal.queue_depth, signal.exact) == (1 + 2 + 3, 6, True)
    assert len(alice.claim()) == 6
    signal = read(desk)
    assert (signal.demand, signal.queue_depth, signal.running) == (6, 0, 6)
    assert read(desk, queues=["elsewhere"]).demand == 0


def test_a_workflow_counts_as_far_as_it_may_run_and_when_it_is_paused_only_what_runs(desk: Desk) -> None:
    alice, roots = Host(desk), desk.store.roots
    roots.set("r", RootTerms(max_running=3))
    desk.messages.publish([desk.new(root_id="r") for _ in range(5)])
    assert (read(desk).demand, read(desk).queue_depth) == (3, 3)
    assert len(alice.claim(2)) == 2
    assert (read(desk).demand, read(desk).queue_depth, read(desk).running) == (3, 1, 2)
    roots.turn("r", "paused")
    assert (read(desk).demand, read(desk).queue_depth) == (2, 0)
    roots.turn("r", "running")
    assert read(desk).demand == 3


def test_a_workflow_whose_budget_is_spent_counts_only_what_runs(desk: Desk) -> None:
    alice = Host(desk)
    desk.store.roots.set("r", RootTerms(children=2))
    desk.messages.publish([desk.new(root_id="r") for _ in range(5)])
    assert read(desk).demand == 2
    assert len(alice.claim()) == 2
    assert (read(desk).demand, read(desk).queue_depth) == (2, 0)


def test_gates_are_looked_at_a_few_at_a_time_until_all_are_seen(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "GATES_AT_FIRST", 2)
    other = desk.store.queues.declare(QueueSpec(name="other"))
    for number in range(5):
        limited(desk, Limit(f"key-{number}", "task", max_running=2), number + 1)
    desk.store.roots.set("r", RootTerms(max_running=3))
    desk.messages.publish([NewMessage(other.id, "x", root_id="r")] * 4)
    signal = read(desk)
    assert (signal.demand, signal.exact) == (1 + 2 + 2 + 2 + 2 + 3, True)
    assert read(desk, queues=["other"]).demand == 3


def test_gates_that_let_nothing_through_hide_none_that_does(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "GATES_AT_FIRST", 2)
    alice = Host(desk)
    for number in range(7):
        limited(desk, Limit(f"key-{number}", "task", max_running=1), 2)
    assert len(alice.claim(7)) == 7
    assert (read(desk).running, read(desk).queue_depth) == (7, 0)
    limited(desk, Limit("last", "task", max_running=3), 4)
    signal = read(desk)
    assert (signal.running, signal.queue_depth, signal.exact) == (7, 3, True)


def test_looking_at_gates_stops_when_no_more_could_be_run(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "GATES_AT_FIRST", 1)
    monkeypatch.setattr(scaling, "COUNT_BOUND", 3)
    for number in range(5):
        limited(desk, Limit(f"key-{number}", "task", max_running=2), 2)
    signal = scaling.read(desk.store, Policy(max_hosts=2, workers_per_host=2))
    assert (signal.desired_hosts, signal.queue_depth, signal.exact) == (2, 4, False)


def test_a_read_looks_at_no_more_gates_than_it_says(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "GATES_AT_FIRST", 1)
    monkeypatch.setattr(scaling, "GATES_BOUND", 3)
    for number in range(5):
        limited(desk, Limit(f"key-{number}", "task", max_running=1), 1)
    signal = read(desk)
    assert (signal.queue_depth, signal.exact) == (3, False)


def test_gates_are_not_looked_at_when_the_answer_is_known_without(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "COUNT_BOUND", 3)
    limited(desk, ONE, 5)
    desk.messages.publish([desk.new()] * 5)
    monkeypatch.setattr(desk.store.loads, "gated", None)
    signal = scaling.read(desk.store, Policy(max_hosts=1, workers_per_host=2))
    assert (signal.desired_hosts, signal.queue_depth, signal.exact) == (1, 3, False)
