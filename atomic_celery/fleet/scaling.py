"""The scaling signal: how many hosts the work wants. One pure function, and one bounded read.

What is counted stops at a bound that no policy's answer depends on: `desired_hosts` is always exact, the counts are
exact up to `COUNT_BOUND` messages and lower bounds above.
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
GATES_BOUND = 10_000
"""At how many gates of a queue is looked; a gate is a pair of limits: of a task or its key, and of a workflow."""


@dataclass(frozen=True, slots=True)
class Load:
    """What some work asks for: a root's, or that of all roots without a limit."""

    ready: int
    running: int
    limit: int | None = None
    """How many of it may run at once; None: any number."""
    open: bool = True
    """Whether it may start anything: not so when it is paused or its budget is spent."""

    @property
    def startable(self) -> int:
        """How many ready ones may start now."""
        if not self.open:
            return 0
        return self.ready if self.limit is None else min(self.ready, max(0, self.limit - self.running))

    @property
    def demand(self) -> int:
        """How many could run at once; never fewer than do, also when the limit was lowered below."""
        return self.running + self.startable


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


def compute(loads: Iterable[Load], slots: Slots, policy: Policy, *, oldest_ms: int = 0, exact: bool = True) -> Scaling:
    """Compute the signal. Pure: the same arguments, the same answer."""
    loads = list(loads)
    demand = sum(load.demand for load in loads)
    wanted = desired_hosts(demand, policy)
    return Scaling(
        desired_hosts=wanted,
        desired_workers=wanted * policy.workers_per_host,
        demand=demand,
        queue_depth=sum(load.startable for load in loads),
        running=sum(load.running for load in loads),
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
    bound = max(COUNT_BOUND, policy.max_hosts * policy.workers_per_host)
    work = store.loads.work(queues, bound)
    gates = store.loads.gated(queues, bound, GATES_BOUND)
    slots = store.loads.slots(round(store.settings.stale_after_s * 1000))
    since_ms = work.waiting_since_ms
    return compute(
        [Load(ready=min(work.ready + work.due + passing(gates), bound), running=min(work.running, bound))],
        slots,
        policy,
        oldest_ms=0 if since_ms is None else max(0, work.now_ms - since_ms),
        exact=max(work.ready, work.due, work.running) <= bound and len(gates) < GATES_BOUND,
    )


def passing(gates: Iterable[Gate]) -> int:
    """Say how many of the messages at gates could pass now, were there a slot for each. Pure."""
    rooms: dict[int, int] = {}
    passed = 0
    for gate in gates:
        limits = {gate.limit_id: gate.room, gate.root_limit_id: gate.root_room}
        known = [limit for limit, room in limits.items() if limit is not None and room is not None]
        left = [rooms.setdefault(limit, limits[limit] or 0) for limit in known]
        count = max(0, min([gate.waiting, *left]))
        passed += count
        for limit in known:
            rooms[limit] -= count
    return passed
