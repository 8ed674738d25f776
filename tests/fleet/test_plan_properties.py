"""Whatever a provisioner lists and hosts do, tick after tick: what a plan must never hold."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from atomic_celery.fleet.decisions import Add, Drain, Remove
from atomic_celery.fleet.memory import Memory
from atomic_celery.fleet.plan import plan
from atomic_celery.fleet.policy import Policy
from atomic_celery.fleet.provisioner import INSTANCE_STATES, Instance
from atomic_celery.fleet.scaling import compute
from atomic_celery.fleet.snapshot import HostSeen, Snapshot, match
from atomic_celery.store.loads import Slots

NOW_MS = 1_700_000_000_000
NAMES = ["a", "b", "c", "d"]
AGES_MS = st.sampled_from([0, 10_000, 16_000, 299_000, 300_000, 3_600_000])
POLICIES = st.builds(
    lambda least, more, slots: Policy(min_hosts=least, max_hosts=max(1, least + more), workers_per_host=slots),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(1, 4),
)
INSTANCES = st.lists(
    st.builds(
        lambda name, state, up_ms, host_id: Instance(
            id=name, state=state, since_ms=None if up_ms is None else NOW_MS - up_ms, host_id=host_id
        ),
        st.sampled_from(NAMES),
        st.sampled_from(INSTANCE_STATES),
        st.none() | AGES_MS,
        st.none() | st.sampled_from(["h-0", "h-1"]),
    ),
    unique_by=lambda instance: instance.id,
)


@st.composite
def hosts(draw: st.DrawFn) -> list[HostSeen]:
    made = []
    for number in range(draw(st.integers(0, 4))):
        silent_ms = draw(AGES_MS)
        made.append(
            HostSeen(
                id=f"h-{number}",
                name=f"h-{number}",
                provider_id=draw(st.none() | st.sampled_from([*NAMES, "elsewhere"])),
                reported_ms=NOW_MS - silent_ms,
                fresh=silent_ms <= 15_000,
                idle_since_ms=draw(st.none() | AGES_MS.map(lambda age_ms: NOW_MS - age_ms)),
                draining=draw(st.booleans()),
                holds=draw(st.booleans()),
            )
        )
    return made


@st.composite
def snapshots(draw: st.DrawFn, policy: Policy) -> Snapshot:
    seen = draw(hosts())
    drained = draw(st.sets(st.sampled_from([*NAMES, "h-0", "h-1"])))
    signal = compute(
        draw(st.integers(0, 12)), draw(st.integers(0, 4)), Slots(sum(host.fresh for host in seen), 0, 0), policy
    )
    return Snapshot(
        NOW_MS,
        draw(INSTANCES),
        seen,
        {name: NOW_MS - draw(AGES_MS) for name in sorted(drained)},
        signal,
        frozenset(draw(st.sets(st.sampled_from(NAMES))) & drained),
    )


def later(seen: Snapshot, by_ms: int) -> Snapshot:
    """Return the same *by_ms* later, every age as it was."""
    return Snapshot(
        seen.now_ms + by_ms,
        [_later_instance(one, by_ms) for one in seen.instances],
        [_later_host(one, by_ms) for one in seen.hosts],
        {name: asked_ms + by_ms for name, asked_ms in seen.drains.items()},
        seen.scaling,
        seen.removing,
    )


def _later_instance(one: Instance, by_ms: int) -> Instance:
    since_ms = None if one.since_ms is None else one.since_ms + by_ms
    return Instance(id=one.id, state=one.state, since_ms=since_ms, host_id=one.host_id)


def _later_host(one: HostSeen, by_ms: int) -> HostSeen:
    return HostSeen(
        id=one.id,
        name=one.name,
        provider_id=one.provider_id,
        reported_ms=one.reported_ms + by_ms,
        fresh=one.fresh,
        idle_since_ms=None if one.idle_since_ms is None else one.idle_since_ms + by_ms,
        draining=one.draining,
        holds=one.holds,
    )


@given(data=st.data(), policy=POLICIES)
def test_whatever_is_listed_no_host_that_lives_or_holds_something_is_removed_and_never_too_many_are_asked_for(
    data: st.DataObject, policy: Policy
) -> None:
    memory = Memory()
    ticks: Sequence[int] = data.draw(st.lists(st.sampled_from([10_000, 60_000, 200_000]), min_size=1, max_size=6))
    at_ms = 0
    for tick_ms in ticks:
        at_ms += tick_ms
        seen = later(data.draw(snapshots(policy)), at_ms)
        decided = plan(seen, memory, policy)
        places, foreign = match(seen.instances, seen.hosts)
        removals = [action for action in decided.actions if isinstance(action, Remove)]
        for removal in removals:
            assert not places[removal.instance].fresh
            assert not places[removal.instance].holds
        idle = [action for action in decided.actions if isinstance(action, Drain) and action.when == "idle"]
        for drain in idle:
            place = places[drain.instance]
            assert not place.holds
            assert len(place.fresh) == len(place.hosts) > 0
        live = sum(host.fresh and not host.draining for host in seen.hosts)
        ended = sum(len(places[drain.instance].hosts) for drain in idle)
        assert not ended or live - ended >= seen.scaling.desired_hosts >= policy.min_hosts
        for add in (action for action in decided.actions if isinstance(action, Add)):
            there = len(seen.instances) - len(removals) + sum(host.fresh for host in foreign)
            assert there + add.add <= policy.max_hosts
            assert add.target + sum(host.fresh for host in foreign) + add.spare == policy.max_hosts
            for kept in range(len(removals) + 1):
                assert there + kept + add.kept(kept).add <= max(policy.max_hosts, there + kept)
        memory = Memory.of(json.loads(json.dumps(decided.memory.document())))
        assert memory == decided.memory
