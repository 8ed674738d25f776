"""A fleet in virtual time: the controller's real plan, and a made-up platform, work and mishaps.

    report = simulate(traces.daily(2.0), Policy(max_hosts=200), World(), for_s=traces.DAY_S)
    print(report.host_hours, report.overhead, report.reversals)

Everything happens at the ticks of the controller, ten seconds apart; the same seed gives the same run. What the
database guards is guarded here, too: a drain of a host that holds something is refused. A plan that would remove a
busy host is an error.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from atomic_celery.fleet.decisions import Add, Drain, Remove
from atomic_celery.fleet.memory import Asked, Memory
from atomic_celery.fleet.plan import plan
from atomic_celery.fleet.policy import Policy
from atomic_celery.fleet.provisioner import Instance
from atomic_celery.fleet.scaling import compute
from atomic_celery.fleet.snapshot import HostSeen, Snapshot
from atomic_celery.store.loads import Slots
from atomic_celery.testing.traces import Trace

TICK_S = 10
_LEASE_S = 30
_START_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The platform and the work."""

    task_s: float = 60.0
    """How long a task runs."""
    boot_s: tuple[float, float] = (60.0, 120.0)
    """How long an instance takes until its host registers: between these."""
    boot_failure_share: float = 0.0
    """Of how many instances no host ever registers."""
    interruptions_an_hour: float = 0.0
    """How often an hour the platform takes a host away without a word, each host."""
    dispatch: Literal["pack", "spread"] = "pack"
    """Which hosts a message goes to: those that have something already, as far as they have room, or just any."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """The fleet at one tick."""

    at_s: int
    hosts: int
    desired_hosts: int
    ready: int
    running: int


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a run."""

    samples: tuple[Sample, ...]
    host_hours: float
    """What was paid for: every instance from its start to its removal."""
    clairvoyant_hours: float
    """The least that could have been: exactly the hosts that the work needs at each moment, booted in no time."""
    completed: int
    unfinished: int
    longest_wait_s: float
    """How long the message waited that waited longest for its first start."""
    reversals: tuple[int, ...]
    """When the controller changed direction: added after it had drained, or drained after it had added."""

    @property
    def overhead(self) -> float:
        """How much more was paid for than the least, as a share of it."""
        return self.host_hours / self.clairvoyant_hours - 1 if self.clairvoyant_hours else 0.0

    def reversals_in_any(self, window_s: int) -> int:
        """Return the most reversals in any window of so many seconds."""
        times = self.reversals
        return max((sum(at <= other < at + window_s for other in times) for at in times), default=0)


def simulate(trace: Trace, policy: Policy, world: World, *, for_s: float) -> Report:
    """Run a fleet for *for_s* virtual seconds.

    Raises:
        AssertionError: The plan would have removed a host that holds something.
    """
    simulation = _Simulation(trace, policy, world)
    for tick in range(int(for_s // TICK_S)):
        simulation.tick(tick)
    return simulation.report(for_s)


@dataclass(slots=True)
class _Host:
    """An instance, and the host on it once it has booted."""

    instance: Instance
    ready_tick: int | None
    """When it registers; None: never."""
    seen: HostSeen | None = None
    busy: int = 0
    draining: bool = False


@dataclass(slots=True)
class _Simulation:
    trace: Trace
    policy: Policy
    world: World
    random: random.Random = field(init=False)
    memory: Memory = field(default_factory=Memory)
    hosts: dict[str, _Host] = field(default_factory=dict)
    serving: dict[str, _Host] = field(default_factory=dict)
    """Those whose host is registered."""
    drains: dict[str, int] = field(default_factory=dict)
    waiting: list[list[int]] = field(default_factory=list)
    """Cohorts of ready messages: (since which tick, how many), the oldest first."""
    ends: dict[int, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    lapses: list[tuple[int, int]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    reversals: list[int] = field(default_factory=list)
    direction: str = ""
    numbers: int = 0
    arrived: float = 0.0
    completed: int = 0
    paid_ticks: int = 0
    longest_wait_ticks: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.world.seed)

    def tick(self, tick: int) -> None:
        self._boot(tick)
        self._interrupt(tick)
        self._finish(tick)
        self._arrive(tick)
        self._dispatch(tick)
        self._leave()
        self._control(tick)
        self.paid_ticks += len(self.hosts)

    def report(self, for_s: float) -> Report:
        ticks_an_hour = 3600 / TICK_S
        return Report(
            samples=tuple(self.samples),
            host_hours=self.paid_ticks / ticks_an_hour,
            clairvoyant_hours=sum(self._least_hosts(for_s)) / ticks_an_hour,
            completed=self.completed,
            unfinished=self._ready() + sum(host.busy for host in self.serving.values()) + self._lapsed(),
            longest_wait_s=self.longest_wait_ticks * TICK_S,
            reversals=tuple(self.reversals),
        )

    # The platform

    def _boot(self, tick: int) -> None:
        for name, host in self.hosts.items():
            if host.ready_tick == tick:
                self.serving[name] = host
                host.seen = HostSeen(
                    id=name,
                    name=name,
                    provider_id=name,
                    reported_ms=_ms(tick),
                    fresh=True,
                    idle_since_ms=_ms(tick),
                    draining=name in self.drains,
                )
                host.draining = name in self.drains

    def _interrupt(self, tick: int) -> None:
        chance = self.world.interruptions_an_hour * TICK_S / 3600
        if not chance:
            return
        for name in [name for name in self.serving if self.random.random() < chance]:
            host = self.serving.pop(name)
            del self.hosts[name]
            self._forget_ends(name)
            if host.busy:
                heapq.heappush(self.lapses, (tick + _LEASE_S // TICK_S, host.busy))

    def _forget_ends(self, name: str) -> None:
        for tick, ended in self.ends.items():
            self.ends[tick] = [end for end in ended if end[0] != name]

    def _leave(self) -> None:
        for name in [name for name, host in self.serving.items() if host.draining and not host.busy]:
            del self.serving[name]
            self.hosts[name].ready_tick = None

    # The work

    def _finish(self, tick: int) -> None:
        for name, count in self.ends.pop(tick, ()):
            host = self.serving[name]
            host.busy -= count
            self.completed += count
            if not host.busy and host.seen is not None:
                host.seen = replace(host.seen, holds=False, idle_since_ms=_ms(tick))

    def _arrive(self, tick: int) -> None:
        while self.lapses and self.lapses[0][0] <= tick:
            self.waiting.insert(0, [tick, heapq.heappop(self.lapses)[1]])
        self.arrived += sum(self.trace(tick * TICK_S + second) for second in range(TICK_S))
        count, self.arrived = int(self.arrived), self.arrived % 1
        if count:
            self.waiting.append([tick, count])

    def _dispatch(self, tick: int) -> None:
        ready = self._ready()
        if not ready:
            return
        slots = self.policy.workers_per_host
        free = [host for host in self.serving.values() if not host.draining and host.busy < slots]
        if self.world.dispatch == "pack":
            free.sort(key=lambda host: -host.busy)
        else:
            self.random.shuffle(free)
        end = tick + max(1, math.ceil(self.world.task_s / TICK_S))
        for host, count in self._shares(free, ready, slots):
            host.busy += count
            self.ends[end].append((host.instance.id, count))
            self._take(tick, count)
            if host.seen is not None and not host.seen.holds:
                host.seen = replace(host.seen, holds=True, idle_since_ms=None)

    def _shares(self, free: list[_Host], ready: int, slots: int) -> Iterator[tuple[_Host, int]]:
        """Say how many messages each host takes: as many as it has room for, or, spread, one after the other."""
        each = slots if self.world.dispatch == "pack" else max(1, -(-ready // max(1, len(free))))
        for host in free:
            count = min(each, slots - host.busy, ready)
            if count <= 0:
                return
            ready -= count
            yield host, count

    def _take(self, tick: int, count: int) -> None:
        while count:
            since, there = self.waiting[0]
            taken = min(count, there)
            self.longest_wait_ticks = max(self.longest_wait_ticks, tick - since)
            count -= taken
            self.waiting[0][1] -= taken
            if not self.waiting[0][1]:
                del self.waiting[0]

    def _ready(self) -> int:
        return sum(count for _, count in self.waiting)

    def _lapsed(self) -> int:
        return sum(count for _, count in self.lapses)

    # The controller

    def _control(self, tick: int) -> None:
        running = sum(host.busy for host in self.serving.values()) + self._lapsed()
        signal = compute(self._ready(), running, Slots(len(self.serving), 0, 0), self.policy)
        self.samples.append(
            Sample(tick * TICK_S, len(self.serving), signal.desired_hosts, signal.queue_depth, signal.running)
        )
        seen = Snapshot(
            _ms(tick),
            [host.instance for host in self.hosts.values()],
            [host.seen for host in self.serving.values() if host.seen is not None],
            self.drains,
            signal,
        )
        decided = plan(seen, self.memory, self.policy)
        self.memory = decided.memory
        for action in decided.actions:
            match action:
                case Drain():
                    self._drain(action.instance, tick)
                case Remove():
                    self._remove(action.instance)
                case Add():
                    self._add(action, tick)
        for name in decided.missing:
            self.drains.pop(name, None)

    def _drain(self, name: str, tick: int) -> None:
        host = self.hosts[name]
        if host.busy:
            return  # the database would have refused
        self._turn("down", tick)
        self.drains.setdefault(name, _ms(tick))
        host.draining = True
        if host.seen is not None:
            host.seen = replace(host.seen, draining=True)

    def _remove(self, name: str) -> None:
        assert name not in self.serving, f"the plan would remove {name}, whose host is registered"
        assert not self.hosts[name].busy, f"the plan would remove {name}, which holds something"
        del self.hosts[name]

    def _add(self, action: Add, tick: int) -> None:
        if not action.replaces:
            self._turn("up", tick)
        self.memory = replace(self.memory, asked=(*self.memory.asked, Asked(_ms(tick), action.add)))
        for _ in range(min(action.add, action.target - len(self.hosts))):
            self.numbers += 1
            name = f"vm-{self.numbers}"
            fails = self.random.random() < self.world.boot_failure_share
            ready = tick + max(1, math.ceil(self.random.uniform(*self.world.boot_s) / TICK_S))
            instance = Instance(id=name, state="running", since_ms=_ms(tick))
            self.hosts[name] = _Host(instance, None if fails else ready)

    def _turn(self, direction: str, tick: int) -> None:
        if self.direction not in ("", direction):
            self.reversals.append(tick * TICK_S)
        self.direction = direction

    # The least that could have been

    def _least_hosts(self, for_s: float) -> Iterator[int]:
        """Yield the hosts that the work needs at each tick, if every one of them is there at once when it is needed."""
        slots = self.policy.workers_per_host
        most = self.policy.max_hosts * slots
        length = max(1, math.ceil(self.world.task_s / TICK_S))
        ends: dict[int, int] = defaultdict(int)
        running = ready = 0
        arrived = 0.0
        for tick in range(int(for_s // TICK_S)):
            arrived += sum(self.trace(tick * TICK_S + second) for second in range(TICK_S))
            ready, arrived = ready + int(arrived), arrived % 1
            running -= ends.pop(tick, 0)
            started = min(ready, most - running)
            ready, running = ready - started, running + started
            ends[tick + length] += started
            yield max(self.policy.min_hosts, -(-running // slots))


def _ms(tick: int) -> int:
    return _START_MS + tick * TICK_S * 1000
