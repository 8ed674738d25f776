"""The scaling signal: how many hosts the work wants. One pure function, and one bounded read.

What is counted stops where the answer no longer depends on it: `desired_hosts` is exact, unless there are more gates
than `GATES_BOUND`; the counts are exact up to `COUNT_BOUND` messages and `GATES_AT_FIRST` gates, else lower bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atomic_celery.fleet.policy import Policy
    from atomic_celery.store.loads import Gate, Slots
    from atomic_celery.store.store import Store

COUNT_BOUND = 50_000
"""Where counting stops, unless the most hosts that are allowed could run more at once."""
GATES_BOUND = 20_000
"""At how many gates is looked; a gate is a queue and a pair of limits: of a task or its key, and of a workflow."""
GATES_AT_FIRST = 1_000
"""At how many of them before it is asked whether what was counted is more than the largest fleet could run."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """The signal at one moment: counts only."""

    desired_hosts: int
    desired_workers: int
    demand: int
    queue_depth: int
    running: int
    hosts: int
    busy_slots: int
    idle_slots: int
    min_hosts: int
    max_hosts: int
    workers_per_host: int
    oldest_ms: int
    """How long the message has been waiting that is first in line for longest; 0 when none waits."""
    exact: bool
    """Whether every count is exact: else those of messages are lower bounds, and *desired_hosts* still is exact."""

    def document(self) -> dict[str, int | bool]:
        """Return the signal in the words that autoscalers read."""
        return {name: getattr(self, field) for name, field in _NAMES.items()}


_NAMES: Mapping[str, str] = {
    "desiredHosts": "desired_hosts",
    "desiredWorkers": "desired_workers",
    "demand": "demand",
    "queueDepth": "queue_depth",
    "running": "running",
    "hosts": "hosts",
    "busySlots": "busy_slots",
    "idleSlots": "idle_slots",
    "minHosts": "min_hosts",
    "maxHosts": "max_hosts",
    "workersPerHost": "workers_per_host",
    "oldestMs": "oldest_ms",
    "exact": "exact",
}


def desired_hosts(demand: int, policy: Policy) -> int:
    """Say how many hosts *demand* wants."""
    wanted = -(-demand // policy.workers_per_host)  # rounded up
    return min(policy.max_hosts, max(policy.min_hosts, wanted))


def compute(
    waiting: int, running: int, slots: Slots, policy: Policy, *, oldest_ms: int = 0, exact: bool = True
) -> Scaling:
    """Compute the signal. Pure: the same arguments, the same answer.

    Args:
        waiting: Messages that could start now.
        running: Messages that somebody holds.
        slots: The hosts'.
        policy: The numbers that it is computed with.
        oldest_ms: How long the message has been waiting that is first in line for longest.
        exact: Whether these are all there are.
    """
    demand = waiting + running
    wanted = desired_hosts(demand, policy)
    return Scaling(
        desired_hosts=wanted,
        desired_workers=wanted * policy.workers_per_host,
        demand=demand,
        queue_depth=waiting,
        running=running,
        hosts=slots.hosts,
        busy_slots=slots.busy,
        idle_slots=slots.idle,
        min_hosts=policy.min_hosts,
        max_hosts=policy.max_hosts,
        workers_per_host=policy.workers_per_host,
        oldest_ms=oldest_ms,
        exact=exact,
    )


def read(store: Store, policy: Policy, queues: Sequence[str] | None = None) -> Scaling:
    """Read the signal; writes nothing.

    Args:
        store: The fleet's.
        policy: The numbers that it is computed with.
        queues: Only the work of these queues; None: of all but temporary ones.
    """
    most = policy.max_hosts * policy.workers_per_host  # that the fleet could run at once
    bound = max(COUNT_BOUND, most)
    work = store.loads.work(queues, bound)
    passing = Passing()
    wanted = most - work.running - work.waiting
    all_seen = work.waiting < bound and _look_at_gates(store, queues, bound, passing, wanted)
    waiting = work.waiting + passing.count
    slots = store.loads.slots(round(store.settings.stale_after_s * 1000))
    since_ms = work.waiting_since_ms
    return compute(
        min(waiting, bound),
        min(work.running, bound),
        slots,
        policy,
        oldest_ms=0 if since_ms is None else max(0, work.now_ms - since_ms),
        exact=all_seen and max(waiting, work.running) <= bound,
    )


def _look_at_gates(store: Store, queues: Sequence[str] | None, bound: int, passing: Passing, wanted: int) -> bool:
    """Look at gates until so many messages could pass; return whether all gates were looked at."""
    looked, next_gates = 0, GATES_AT_FIRST
    after: Mapping[int, str] = {}
    while next_gates > 0:
        gates = store.loads.gated(queues, bound, next_gates, after)
        passing.add(gates.passable)
        if gates.looked < next_gates:
            return True
        if passing.count >= wanted:
            return False
        looked += gates.looked
        after = gates.after
        # As many as it takes if the rest is like these: each look counts anew what runs under its limits.
        missing = looked * (wanted - passing.count) // max(1, passing.count)
        next_gates = min(max(GATES_AT_FIRST, missing), GATES_BOUND - looked)
    return False


class Passing:
    """How many of the messages at gates could pass now, were there a slot for each."""

    def __init__(self) -> None:
        self.count = 0
        self._rooms: dict[int, int] = {}

    def add(self, gates: Iterable[Gate]) -> None:
        """Count those at some more gates, as far as their limits have room left."""
        rooms = self._rooms
        for _, _, waiting, limit_id, room, root_limit_id, root_room in gates:
            count = waiting
            if room is not None and limit_id is not None:
                count = min(count, rooms.setdefault(limit_id, room))
            if root_room is not None and root_limit_id is not None:
                count = min(count, rooms.setdefault(root_limit_id, root_room))
            if count <= 0:
                continue
            self.count += count
            for limit in (limit_id, root_limit_id):
                if limit in rooms:
                    rooms[limit] -= count
