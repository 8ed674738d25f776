"""The plan, rule by rule: what is seen, what is remembered, and what is to be done then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from atomic_celery.fleet.decisions import Add, Drain, News, Plan, Remove
from atomic_celery.fleet.memory import WATCH_GAP_MS, Asked, HostKnown, Known, Memory
from atomic_celery.fleet.plan import LEFT_GRACE_MS, LOST_AFTER_MS, SILENT_REMOVED_AFTER_MS, SURE_AFTER_MS, plan
from atomic_celery.fleet.policy import Policy
from atomic_celery.fleet.provisioner import Instance, InstanceState
from atomic_celery.fleet.scaling import compute
from atomic_celery.fleet.snapshot import HostSeen, Snapshot
from atomic_celery.store.loads import Slots

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000
POLICY = Policy()
WATCHED = Memory(ticked_ms=NOW_MS - 10_000, watched_since_ms=NOW_MS - 60 * MINUTE_MS)


def instance(
    name: str, state: InstanceState = "running", *, up_ms: int | None = None, host: str | None = None
) -> Instance:
    return Instance(id=name, state=state, since_ms=None if up_ms is None else NOW_MS - up_ms, host_id=host)


def host(
    name: str,
    *,
    on: str | None = None,
    idle_ms: int | None = None,
    silent_ms: int = 0,
    draining: bool = False,
    holds: bool = False,
) -> HostSeen:
    return HostSeen(
        id=f"id-{name}",
        name=name,
        provider_id=on,
        reported_ms=NOW_MS - silent_ms,
        fresh=silent_ms <= 15_000,
        idle_since_ms=None if idle_ms is None else NOW_MS - idle_ms,
        draining=draining,
        holds=holds,
    )


def see(
    instances: Sequence[Instance] = (),
    hosts: Sequence[HostSeen] = (),
    *,
    ready: int = 0,
    running: int = 0,
    drained: dict[str, int] | None = None,
    policy: Policy = POLICY,
) -> Snapshot:
    """Return a snapshot. *drained* says how long ago each drain was asked."""
    signal = compute(ready, running, Slots(sum(host.fresh for host in hosts), 0, 0), policy)
    drains = {name: NOW_MS - ago_ms for name, ago_ms in (drained or {}).items()}
    return Snapshot(NOW_MS, instances, hosts, drains, signal)


def later(seen: Snapshot, by_ms: int) -> Snapshot:
    return replace(seen, now_ms=seen.now_ms + by_ms)


def knows(*names: str, host_ms: int | None = None, first_ms: int = NOW_MS - 60 * MINUTE_MS, **facts: Any) -> Memory:
    return replace(WATCHED, instances={name: Known(first_ms, host_ms) for name in names}, **facts)


def added(decided: Plan) -> list[tuple[int, int]]:
    return [(action.target, action.add) for action in decided.actions if isinstance(action, Add)]


def drains(decided: Plan) -> list[str]:
    return [action.instance for action in decided.actions if isinstance(action, Drain)]


def removed(decided: Plan) -> list[tuple[str, str]]:
    return [(action.instance, action.cause) for action in decided.actions if isinstance(action, Remove)]


# Adding


def test_nothing_to_do_is_said() -> None:
    decided = plan(see(), WATCHED, POLICY)
    assert (decided.actions, decided.reasons()) == ((), ["nothing to do"])


def test_with_no_host_at_all_hosts_are_added_at_once() -> None:
    decided = plan(see(ready=9), WATCHED, POLICY)
    assert added(decided) == [(3, 3)]
    assert decided.reasons() == ["demand of 9 and no host → add 3"]


def test_a_lapsed_message_that_nobody_can_reclaim_wants_a_host() -> None:
    assert added(plan(see(running=1), WATCHED, POLICY)) == [(1, 1)]


@pytest.mark.parametrize("ready", [1, 4])
def test_with_a_host_few_may_wait(ready: int) -> None:
    """The dead zone of one host's worth: intended damping."""
    seen = see([instance("a")], [host("h", on="a")], ready=ready, running=4)
    memory = plan(seen, knows("a"), POLICY).memory
    assert memory.pressed_since_ms is None
    assert not added(plan(later(seen, 10 * MINUTE_MS), memory, POLICY))


def test_more_are_added_once_too_many_have_been_waiting_for_long_enough() -> None:
    seen = see([instance("a")], [host("h", on="a")], ready=5, running=4)
    first = plan(seen, knows("a"), POLICY)
    assert not added(first)
    assert first.memory.pressed_since_ms == NOW_MS
    assert not added(plan(later(seen, 19_999), first.memory, POLICY))
    then = plan(later(seen, 20_000), first.memory, POLICY)
    assert added(then) == [(3, 2)]
    assert then.reasons() == ["more than 4 have been waiting for 20s, 1 of 3 hosts → add 2"]


def test_a_break_starts_the_wait_anew() -> None:
    pressed = knows("a", pressed_since_ms=NOW_MS - 19_000)
    calm = plan(see([instance("a")], [host("h", on="a")], ready=4), pressed, POLICY)
    assert calm.memory.pressed_since_ms is None


def test_what_was_asked_for_is_not_asked_for_again_before_it_is_listed() -> None:
    memory = replace(WATCHED, asked=(Asked(NOW_MS - 10_000, 3),))
    assert not added(plan(see(ready=9), memory, POLICY))
    pressed = replace(memory, pressed_since_ms=NOW_MS - MINUTE_MS)
    assert added(plan(see(ready=17), pressed, POLICY)) == [(5, 2)]


def test_what_is_listed_is_no_longer_on_its_way() -> None:
    memory = replace(WATCHED, asked=(Asked(NOW_MS - 20_000, 2), Asked(NOW_MS - 10_000, 1)))
    decided = plan(see([instance("a", "pending"), instance("b", "pending")], ready=9), memory, POLICY)
    assert decided.memory.asked == (Asked(NOW_MS - 10_000, 1),)
    assert not added(decided)


def test_what_is_not_listed_until_the_boot_timeout_is_given_up() -> None:
    memory = replace(WATCHED, asked=(Asked(NOW_MS - POLICY.boot_timeout_ms, 3),))
    assert added(plan(see(ready=9), memory, POLICY)) == [(3, 3)]


def test_pending_instances_are_hosts_on_their_way() -> None:
    seen = see([instance("a", "pending", up_ms=0), instance("b", "running", up_ms=0)], ready=8)
    assert not plan(seen, WATCHED, POLICY).actions


def test_hosts_below_the_least_are_added_at_once() -> None:
    policy = Policy(min_hosts=3)
    decided = plan(see([instance("a")], [host("h", on="a")], policy=policy), knows("a"), policy)
    assert added(decided) == [(3, 2)]
    assert decided.reasons() == ["1 host, below the least of 3 → add 2"]


def test_never_more_than_the_most_are_there_whatever_state_they_are_in() -> None:
    policy = Policy(max_hosts=3, workers_per_host=1)
    listed = [instance("a", "draining"), instance("b", "stopped"), instance("c", "pending", up_ms=0)]
    pressed = knows("a", "b", "c", pressed_since_ms=NOW_MS - MINUTE_MS)
    decided = plan(see(listed, ready=100, policy=policy), pressed, policy)
    # The stopped one is removed in the same plan, so there is room for one.
    assert added(decided) == [(3, 1)]
    there = [*listed[:1], *listed[2:], instance("d", "pending", up_ms=0)]
    full = plan(see(there, ready=100, policy=policy), replace(pressed, instances=knows("a", "c").instances), policy)
    assert not added(full)
    assert full.held is not None
    assert full.held.why == "more than 1 have been waiting for 1m, 2 of 3 hosts; held: 3 hosts are the most allowed"


def test_hosts_that_the_provider_does_not_list_count_too() -> None:
    policy = Policy(max_hosts=3, workers_per_host=1)
    hosts = [host("own-1"), host("own-2")]
    seen = see(hosts=hosts, ready=100, policy=policy)
    decided = plan(seen, replace(WATCHED, pressed_since_ms=NOW_MS - MINUTE_MS), policy)
    assert added(decided) == [(1, 1)]


def test_a_listing_that_misses_an_instance_once_makes_no_room_for_another() -> None:
    policy = Policy(max_hosts=2, workers_per_host=1)
    both = knows("a", "b", host_ms=NOW_MS - 10_000, pressed_since_ms=NOW_MS - MINUTE_MS)
    seen = see([instance("a")], [host("h", on="a")], ready=100, policy=policy)
    first = plan(seen, both, policy)
    second = plan(later(seen, 10_000), first.memory, policy)
    third = plan(later(seen, 20_000), second.memory, policy)
    assert (added(first), added(second), added(third)) == ([], [], [(2, 1)])


def test_draining_hosts_are_no_capacity_but_count_in_the_target() -> None:
    policy = Policy(workers_per_host=1)
    seen = see(
        [instance("a"), instance("b")],
        [host("h1", on="a", draining=True), host("h2", on="b")],
        ready=2,
        drained={"a": MINUTE_MS},
        policy=policy,
    )
    decided = plan(seen, knows("a", "b", pressed_since_ms=NOW_MS - MINUTE_MS), policy)
    assert added(decided) == [(3, 1)]


# Draining


def test_idle_hosts_above_the_target_are_drained_the_longest_idle_first() -> None:
    minutes = {"a": 6, "b": 9, "c": 7, "d": 1}
    seen = see(
        [instance(name) for name in minutes],
        [host(f"h{name}", on=name, idle_ms=ago * MINUTE_MS) for name, ago in minutes.items()],
        running=5,
    )
    decided = plan(seen, knows(*minutes), POLICY)
    assert drains(decided) == ["b", "c"]
    assert decided.reasons()[0] == "2 above target, 4 idle, oldest idle 9m → drain hb"


@pytest.mark.parametrize(
    ("idle_ms", "drained"),
    [(299_999, []), (300_000, ["a"]), (None, [])],
)
def test_a_host_is_drained_after_so_long_without_a_message(idle_ms: int | None, drained: list[str]) -> None:
    seen = see([instance("a")], [host("h", on="a", idle_ms=idle_ms)])
    assert drains(plan(seen, knows("a"), POLICY)) == drained


@pytest.mark.parametrize(
    "facts",
    [
        {"holds": True},  # says the database, whatever the host has reported
        {"draining": True},
        {"silent_ms": 16_000},
    ],
)
def test_a_host_that_holds_something_or_drains_or_is_silent_is_not_drained_as_idle(facts: dict[str, Any]) -> None:
    seen = see([instance("a")], [host("h", on="a", idle_ms=60 * MINUTE_MS, **facts)])
    assert not plan(seen, knows("a"), POLICY).actions


def test_never_fewer_than_the_least_are_left() -> None:
    policy = Policy(min_hosts=2)
    names = ["a", "b", "c"]
    seen = see(
        [instance(name) for name in names],
        [host(f"h{name}", on=name, idle_ms=60 * MINUTE_MS) for name in names],
        policy=policy,
    )
    assert len(drains(plan(seen, knows(*names), policy))) == 1


def test_when_fewer_may_be_there_than_are_the_idle_go_and_the_busy_stay() -> None:
    policy, names = Policy(max_hosts=1), ["a", "b", "c"]

    def seen(**idle_ms: int) -> Snapshot:
        hosts = [host(f"h{name}", on=name, idle_ms=idle_ms.get(name), holds=name not in idle_ms) for name in names]
        return see([instance(name) for name in names], hosts, running=12, policy=policy)

    assert not plan(seen(), knows(*names, host_ms=NOW_MS - 10_000), policy).actions
    assert drains(plan(seen(b=6 * MINUTE_MS), knows(*names, host_ms=NOW_MS - 10_000), policy)) == ["b"]


def test_hosts_of_an_instance_are_drained_together_or_not_at_all() -> None:
    seen = see(
        [instance("a"), instance("b")],
        [
            host("a1", on="a", idle_ms=60 * MINUTE_MS),
            host("a2", on="a", idle_ms=50 * MINUTE_MS),
            host("b1", on="b", idle_ms=6 * MINUTE_MS),
        ],
        running=8,
    )
    # One host is too many: not both of a, though they have been idle for longer.
    assert drains(plan(seen, knows("a", "b"), POLICY)) == ["b"]


def test_a_host_that_no_instance_is_listed_for_is_never_drained() -> None:
    seen = see(hosts=[host("own", idle_ms=60 * MINUTE_MS)])
    assert not plan(seen, WATCHED, POLICY).actions


def test_a_host_without_a_provider_id_is_matched_by_the_host_id_that_is_listed() -> None:
    seen = see([instance("a", host="id-h")], [host("h", idle_ms=60 * MINUTE_MS)])
    [action] = plan(seen, knows("a"), POLICY).actions
    assert isinstance(action, Drain)
    assert (action.instance, action.host_ids) == ("a", ("id-h",))


# Removing what was drained


def test_a_drained_instance_is_removed_when_its_host_has_left() -> None:
    seen = see([instance("a")], drained={"a": 10_000})
    decided = plan(seen, knows("a"), POLICY)
    assert removed(decided) == [("a", "drained")]
    assert decided.reasons() == ["drained, and its hosts have left → remove a"]


def test_one_whose_host_is_still_there_is_not() -> None:
    seen = see([instance("a")], [host("h", on="a", draining=True)], drained={"a": 60 * MINUTE_MS})
    assert not plan(seen, knows("a"), POLICY).actions


@pytest.mark.parametrize(
    ("asked_ms", "expected"), [(SILENT_REMOVED_AFTER_MS - 1, []), (SILENT_REMOVED_AFTER_MS, [("a", "drained")])]
)
def test_one_whose_host_is_silent_is_removed_five_minutes_after_the_drain(
    asked_ms: int, expected: list[tuple[str, str]]
) -> None:
    silent = host("h", on="a", silent_ms=20 * MINUTE_MS, draining=True)
    assert removed(plan(see([instance("a")], [silent], drained={"a": asked_ms}), knows("a"), POLICY)) == expected


def test_never_while_it_holds_a_message_whether_or_not_it_reports() -> None:
    silent = host("h", on="a", silent_ms=60 * MINUTE_MS, draining=True, holds=True)
    decided = plan(see([instance("a")], [silent], running=1, drained={"a": 60 * MINUTE_MS}), knows("a"), POLICY)
    assert not removed(decided)
    assert decided.notes == ("a keeps its instance: its host is silent and holds a message",)


def test_one_is_kept_while_a_host_of_no_known_instance_holds_a_message() -> None:
    stray = host("stray", holds=True)
    decided = plan(see([instance("a")], [stray], running=1, drained={"a": MINUTE_MS}), knows("a"), POLICY)
    assert not removed(decided)
    named = host("named", on="elsewhere", holds=True)
    assert removed(plan(see([instance("a")], [named], running=1, drained={"a": MINUTE_MS}), knows("a"), POLICY))


def test_one_that_the_provider_removes_already_is_left_alone() -> None:
    assert not plan(see([instance("a", "draining")], drained={"a": MINUTE_MS}), knows("a"), POLICY).actions


def test_several_hosts_of_an_instance_must_all_have_left() -> None:
    seen = see([instance("a")], [host("h2", on="a", draining=True)], drained={"a": MINUTE_MS})
    assert not plan(seen, knows("a"), POLICY).actions


def test_a_host_that_comes_back_on_a_drained_instance_is_drained_again() -> None:
    seen = see([instance("a", host="id-new")], [host("new")], drained={"a": MINUTE_MS})
    [action] = plan(seen, knows("a"), POLICY).actions
    assert isinstance(action, Drain)
    assert (action.instance, action.host_ids, action.when) == ("a", ("id-new",), "always")


def test_an_instance_is_drained_with_a_host_that_was_drained_by_its_own_id() -> None:
    """Somebody drained the host, which does not know where it runs; else nothing would ever remove the instance."""
    seen = see([instance("a", host="id-h")], [host("h", draining=True)], drained={"id-h": MINUTE_MS})
    [action] = plan(seen, knows("a"), POLICY).actions
    assert isinstance(action, Drain)
    assert (action.instance, action.host_ids, action.when) == ("a", ("id-h",), "always")
    both = see([instance("a", host="id-h")], [host("h", draining=True)], drained={"id-h": MINUTE_MS, "a": 0})
    assert not plan(both, knows("a"), POLICY).actions


# A provider that fails at removals


def test_what_was_never_tried_is_removed_before_what_was_tried_in_vain() -> None:
    seen = see([instance("a"), instance("b")], drained={"a": MINUTE_MS, "b": MINUTE_MS})
    decided = plan(replace(seen, removing=frozenset({"a"})), knows("a", "b"), POLICY)
    assert removed(decided) == [("b", "drained"), ("a", "drained")]


def test_removals_wait_after_one_failed_and_additions_do_not() -> None:
    seen = see([instance("a"), instance("c", "failed")], ready=9, drained={"a": MINUTE_MS})
    waiting = knows("a", "c").removal_failed(NOW_MS - 1000)
    decided = plan(seen, waiting, POLICY)
    assert (removed(decided), added(decided)) == ([], [(5, 3)])
    assert decided.notes == ("2 removals held for 9s: the provider failed at one",)
    assert decided.memory.boot_failures == 0, "what is not removed yet has not failed yet"
    assert decided.memory.well().removal_failures == 1
    due = plan(later(seen, 9000), waiting, POLICY)
    assert removed(due) == [("a", "drained"), ("c", "boot-failed")]
    assert due.memory.well().removal_failures == 0


def test_failures_at_removals_wait_for_longer_and_longer() -> None:
    memory, waits = WATCHED, []
    for _ in range(8):
        memory = memory.removal_failed(NOW_MS)
        waits.append((memory.removal_retry_ms - NOW_MS) // 1000)
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600]
    assert memory.provider_retry_ms == 0


@pytest.mark.parametrize(
    ("add", "kept", "expected"),
    [
        (Add(3, 3, "", spare=7), 1, (4, 3)),
        (Add(3, 1, "", spare=0), 1, (3, 0)),
        (Add(5, 3, "", spare=1), 2, (6, 2)),
        (Add(5, 3, "", spare=0), 9, (11, 0)),
        (Add(3, 3, "", spare=7), 0, (3, 3)),
    ],
)
def test_what_is_not_removed_after_all_takes_the_room_of_what_would_be_added(
    add: Add, kept: int, expected: tuple[int, int]
) -> None:
    assert (add.kept(kept).target, add.kept(kept).add) == expected


def test_what_is_not_added_replaces_nothing() -> None:
    assert Add(3, 2, "", replaces=2).kept(1).replaces == 1


# Forgetting drains


def test_drained_instances_are_counted_as_listed_or_missing() -> None:
    seen = see([instance("a", "draining")], drained={"a": MINUTE_MS, "b": MINUTE_MS, "operator's": MINUTE_MS})
    decided = plan(seen, knows("a", "b"), POLICY)
    assert (decided.listed, decided.missing) == (("a",), ("b",))


def test_an_instance_is_known_as_long_as_its_drain_is() -> None:
    memory, seen = knows("b"), see(drained={"b": MINUTE_MS})
    for turn in range(5):
        memory = plan(later(seen, turn * 10_000), memory, POLICY).memory
    assert "b" in memory.instances
    assert "b" not in plan(later(see(), 60_000), memory, POLICY).memory.instances


# Failing to boot


@pytest.mark.parametrize(
    ("up_ms", "expected"),
    [(599_999, []), (600_000, [("a", "boot-failed")])],
)
def test_an_instance_that_no_host_registers_on_in_time_is_removed(up_ms: int, expected: list[tuple[str, str]]) -> None:
    seen = see([instance("a", up_ms=up_ms)])
    assert removed(plan(seen, knows("a", first_ms=NOW_MS - MINUTE_MS), POLICY)) == expected


def test_one_of_unknown_age_is_as_old_as_its_first_listing() -> None:
    seen = see([instance("a")])
    assert not removed(plan(seen, knows("a", first_ms=NOW_MS - 599_000), POLICY))
    assert removed(plan(seen, knows("a", first_ms=NOW_MS - 600_000), POLICY))


def test_one_whose_provider_has_a_clock_ahead_of_the_database_s_is_as_old_as_its_first_listing() -> None:
    assert removed(plan(see([instance("a", up_ms=-MINUTE_MS)]), knows("a"), POLICY))


def test_one_that_registers_just_in_time_is_kept() -> None:
    seen = see([instance("a", up_ms=600_000)], [host("h", on="a")])
    decided = plan(seen, knows("a"), POLICY)
    assert not decided.actions
    assert decided.memory.instances["a"].host_ms == NOW_MS


@pytest.mark.parametrize(
    ("up_ms", "silent_ms", "expected"),
    [
        (600_000, 16_000, [("a", "boot-failed")]),  # registered in time, and silent now
        (599_999, 16_000, []),  # its time is not over
        (616_000, 16_000, []),  # it reported when its time was over: it has booted, and silence is another matter
        (616_001, 16_001, []),
        (616_000, 16_001, [("a", "boot-failed")]),
        (600_000, 15_000, []),  # it reports
        (600_000, 250_000, [("a", "boot-failed")]),
    ],
)
def test_one_that_registers_and_falls_silent_before_its_time_is_over_is_not_kept(
    up_ms: int, silent_ms: int, expected: list[tuple[str, str]]
) -> None:
    seen = see([instance("a", up_ms=up_ms)], [host("h", on="a", silent_ms=silent_ms)])
    decided = plan(seen, knows("a", host_ms=NOW_MS - silent_ms), POLICY)
    assert removed(decided) == expected
    holds = see([instance("a", up_ms=up_ms)], [host("h", on="a", silent_ms=silent_ms, holds=True)], running=1)
    assert not removed(plan(holds, knows("a"), POLICY))


def test_the_first_that_fails_is_replaced_at_once_and_the_next_ones_after_a_while() -> None:
    policy = Policy(min_hosts=0, workers_per_host=1)
    memory = knows("other", "a", host_ms=None)
    waits = []
    for _ in range(8):
        seen = see([instance("other"), instance("a", "failed")], [host("h", on="other")], running=2, policy=policy)
        memory = replace(memory, instances={"other": Known(NOW_MS, NOW_MS), "a": Known(NOW_MS)}, asked=())
        decided = plan(seen, memory, policy)
        assert removed(decided) == [("a", "boot-failed")]
        waits.append((decided.memory.boot_retry_ms - NOW_MS) // 1000)
        assert bool(added(decided)) == (waits[-1] == 0)
        memory = decided.memory
    assert waits == [0, 30, 60, 120, 240, 480, 600, 600]


def test_hosts_are_held_while_the_next_try_is_not_due() -> None:
    memory = replace(WATCHED, boot_failures=2, boot_retry_ms=NOW_MS + 20_000, replacing=1)
    decided = plan(see(ready=4), memory, POLICY)
    assert decided.held is not None
    assert decided.held.why == "demand of 4 and no host; held for 20s: 2 instances in a row failed to boot"
    assert added(plan(later(see(ready=4), 20_000), decided.memory, POLICY)) == [(1, 1)]


def test_a_replacement_needs_no_queue_but_a_target_above_what_there_is() -> None:
    policy = Policy(workers_per_host=1)
    there = [instance("other"), instance("a", "failed")]
    needed = plan(see(there, [host("h", on="other")], running=2, policy=policy), knows("other", "a"), policy)
    assert added(needed) == [(2, 1)]
    assert needed.actions[-1] == Add(2, 1, "1 instance failed → add 1", replaces=1, spare=8)
    unneeded = plan(see(there, [host("h", on="other")], running=1, policy=policy), knows("other", "a"), policy)
    assert not added(unneeded)
    assert unneeded.memory.replacing == 0


def test_a_host_that_registers_ends_the_row_of_failures() -> None:
    memory = replace(knows("a", host_ms=None), boot_failures=4, boot_retry_ms=NOW_MS + MINUTE_MS)
    decided = plan(see([instance("a")], [host("h", on="a")]), memory, POLICY)
    assert (decided.memory.boot_failures, decided.memory.boot_retry_ms) == (0, 0)
    # One that has been there all the time does not.
    memory = replace(knows("a", host_ms=NOW_MS - 10_000), boot_failures=4)
    assert plan(see([instance("a")], [host("h", on="a")]), memory, POLICY).memory.boot_failures == 4


def test_one_that_fails_after_it_worked_is_removed_and_no_failure_to_boot() -> None:
    decided = plan(see([instance("a", "failed")]), knows("a", host_ms=NOW_MS - MINUTE_MS), POLICY)
    assert removed(decided) == [("a", "failed")]
    assert decided.memory.boot_failures == 0


def test_one_that_fails_after_it_worked_is_replaced_too_if_it_is_wanted() -> None:
    policy = Policy(workers_per_host=1)
    there = [instance("other"), instance("a", "failed")]
    memory = knows("other", "a", host_ms=NOW_MS - MINUTE_MS)
    wanted = plan(see(there, [host("h", on="other")], running=2, policy=policy), memory, policy)
    assert wanted.actions[-1] == Add(2, 1, "1 instance failed → add 1", replaces=1, spare=8)
    unwanted = plan(see(there, [host("h", on="other")], running=1, policy=policy), memory, policy)
    assert not added(unwanted)


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_never_one_whose_host_lives_or_holds_a_message_whatever_the_provider_says(state: InstanceState) -> None:
    for facts in ({}, {"silent_ms": 60 * MINUTE_MS, "holds": True}):
        seen = see([instance("a", state)], [host("h", on="a", **facts)], running=1)
        assert not removed(plan(seen, knows("a"), POLICY))


def test_one_that_has_ended_by_itself_is_removed() -> None:
    assert removed(plan(see([instance("a", "stopped")]), knows("a"), POLICY)) == [("a", "stopped")]


def test_one_whose_host_left_by_itself_is_expected_back_for_a_minute_and_removed_after_the_boot_timeout() -> None:
    def left(ago_ms: int) -> Plan:
        return plan(see([instance("a")], ready=1), knows("a", host_ms=NOW_MS - ago_ms), POLICY)

    assert not left(LEFT_GRACE_MS - 1).actions
    assert added(left(LEFT_GRACE_MS)) == [(2, 1)]
    assert removed(left(POLICY.boot_timeout_ms)) == [("a", "left")]


# Silence


@pytest.mark.parametrize(("silent_ms", "expected"), [(16_000, []), (LOST_AFTER_MS - 1, []), (LOST_AFTER_MS, ["a"])])
def test_an_instance_whose_host_has_been_silent_for_long_is_drained(silent_ms: int, expected: list[str]) -> None:
    seen = see([instance("a")], [host("h", on="a", silent_ms=silent_ms)])
    decided = plan(seen, knows("a"), POLICY)
    assert drains(decided) == expected
    assert not removed(decided)


def test_not_while_it_holds_a_message() -> None:
    seen = see([instance("a")], [host("h", on="a", silent_ms=60 * MINUTE_MS, holds=True)], running=1)
    assert not drains(plan(seen, knows("a"), POLICY))


def test_after_an_outage_silence_is_no_death() -> None:
    """All hosts are silent when the database comes back, and none of them is dead."""
    away = replace(knows("a", "b"), ticked_ms=NOW_MS - WATCH_GAP_MS - 1, pressed_since_ms=NOW_MS - 10 * MINUTE_MS)
    seen = see([instance("a"), instance("b", up_ms=60 * MINUTE_MS)], [host("h", on="a", silent_ms=30 * MINUTE_MS)])
    first = plan(seen, away, POLICY)
    assert not first.actions
    assert (first.memory.watched_since_ms, first.memory.pressed_since_ms) == (NOW_MS, None)
    sure = replace(first.memory, ticked_ms=NOW_MS + SURE_AFTER_MS - 10_000)
    then = plan(later(seen, SURE_AFTER_MS), sure, POLICY)
    assert (drains(then), removed(then)) == (["a"], [("b", "boot-failed")])


def test_a_tick_of_a_clock_that_was_set_back_begins_anew() -> None:
    assert WATCHED.watch(NOW_MS - 60 * MINUTE_MS).watched_since_ms == NOW_MS - 60 * MINUTE_MS


# News


def test_what_hosts_do_by_themselves_is_news_once() -> None:
    seen = see([instance("a")], [host("h", on="a")])
    came = plan(seen, WATCHED, POLICY)
    assert came.news == (News("host-registered", "id-h", "a"),)
    there = plan(later(seen, 10_000), came.memory, POLICY)
    assert there.news == ()
    gone = plan(later(see([instance("a")]), 20_000), there.memory, POLICY)
    assert gone.news == (News("host-left", "id-h", "a"),)
    assert plan(later(see([instance("a")]), 30_000), gone.memory, POLICY).news == ()
    silent = see([instance("a")], [host("h", on="a", silent_ms=16_000)])
    fell_silent = plan(later(silent, 20_000), there.memory, POLICY)
    assert fell_silent.news == (News("host-stale", "id-h", "a"),)
    assert plan(later(silent, 30_000), fell_silent.memory, POLICY).news == ()
    assert plan(later(seen, 40_000), fell_silent.memory, POLICY).news == (), "it has been known all the time"


def test_each_host_of_an_instance_is_news_and_so_is_one_of_no_known_instance() -> None:
    seen = see([instance("a")], [host("h1", on="a"), host("h2", on="a"), host("own"), host("far", on="elsewhere")])
    came = plan(seen, WATCHED, POLICY)
    assert [(news.host, news.instance) for news in came.news] == [
        ("id-h1", "a"),
        ("id-h2", "a"),
        ("id-own", None),
        ("id-far", "elsewhere"),
    ]
    gone = plan(later(see([instance("a")], [host("h1", on="a"), host("own")]), 10_000), came.memory, POLICY)
    assert gone.news == (News("host-left", "id-h2", "a"), News("host-left", "id-far", "elsewhere"))


def test_a_host_that_was_silent_from_the_first_is_no_news() -> None:
    seen = see([instance("a")], [host("h", on="a", silent_ms=60 * MINUTE_MS)])
    first = plan(seen, WATCHED, POLICY)
    assert (first.news, plan(later(see([instance("a")]), 10_000), first.memory, POLICY).news) == ((), ())


# Memory


def test_what_is_remembered_survives_its_document() -> None:
    memory = replace(
        knows("a", host_ms=NOW_MS), asked=(Asked(NOW_MS, 2),), pressed_since_ms=NOW_MS, boot_failures=3, replacing=1
    )
    memory = replace(memory, hosts={"h": HostKnown("a", fresh=True), "own": HostKnown(None, fresh=False)})
    assert Memory.of(json.loads(json.dumps(memory.document()))) == memory
    assert Memory.of({"unheard_of": 1}) == Memory()


def test_the_plan_is_a_function_of_its_arguments() -> None:
    seen = see([instance("a")], [host("h", on="a", idle_ms=60 * MINUTE_MS)])
    assert plan(seen, knows("a"), POLICY) == plan(seen, knows("a"), POLICY)
