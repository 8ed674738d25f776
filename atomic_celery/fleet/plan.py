"""What the fleet controller does next, and why: a pure function of what it sees, what it remembers and its policy.

The plan is what is *wanted*; each act on it is guarded once more by the database, at the moment it is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from atomic_celery.fleet.decisions import Add, Cause, Drain, Held, News, Plan, Remove
from atomic_celery.fleet.memory import Asked, HostKnown, Known, Memory
from atomic_celery.fleet.policy import Policy
from atomic_celery.fleet.snapshot import HostSeen, Place, Snapshot, match
from atomic_celery.tables import amount, span

LISTINGS_TO_FORGET = 3
"""From so many listings in a row an instance must be missing before it counts as gone."""
SILENT_REMOVED_AFTER_MS = 300_000
"""How long after its drain was asked an instance is removed whose host stopped reporting without leaving."""
LOST_AFTER_MS = 300_000
"""How long a host must be silent before its instance is given up and drained."""
SURE_AFTER_MS = 60_000
"""How long a controller has to watch before it takes silence for a death: hosts may have lost the database with it."""
LEFT_GRACE_MS = 60_000
"""How long an instance whose host has left by itself counts as one that will have a host again."""
BOOT_RETRY_FIRST_MS, BOOT_RETRY_CEILING_MS = 30_000, 600_000


def plan(seen: Snapshot, memory: Memory, policy: Policy) -> Plan:
    """Decide. Pure: the same arguments, the same answer."""
    return _Planning(seen, memory.watch(seen.now_ms), policy).decide()


@dataclass(slots=True)
class _Planning:
    """One decision in the making."""

    seen: Snapshot
    memory: Memory
    policy: Policy
    places: dict[str, Place] = field(default_factory=dict)
    foreign: list[HostSeen] = field(default_factory=list)
    drained: dict[str, int] = field(default_factory=dict)
    """When the drain was asked, of each place that has one."""
    notes: list[str] = field(default_factory=list)

    def decide(self) -> Plan:
        self.places, self.foreign = match(self.seen.instances, self.seen.hosts)
        if self.seen.drains:
            asked = ((name, place.asked_ms(self.seen.drains)) for name, place in self.places.items())
            self.drained = {name: asked_ms for name, asked_ms in asked if asked_ms is not None}
        missing = self._missing_drains()
        news = tuple(self._notice_hosts())
        self._notice()
        removals = self._possible_removals()
        self._count_failures(removals)
        added, held = self._growth(len(removals))
        drains = [*self._redrains(), *self._lost(), *self._idle()]
        listed = tuple(name for place in self.drained for name in self._names(place) if name in self.seen.drains)
        return Plan((*removals, *added, *drains), self.memory, held, tuple(self.notes), listed, missing, news)

    # What is remembered

    def _notice(self) -> None:
        """Remember what the listing shows."""
        now_ms, before = self.seen.now_ms, self.memory.instances
        known: dict[str, Known] = {}
        new = registered = 0
        for name, place in self.places.items():
            old = before.get(name)
            new += old is None
            old = old or Known(now_ms)
            if place.fresh:
                registered += old.host_ms is None
                known[name] = Known(old.first_ms, now_ms)
            else:
                known[name] = old._replace(missed=0) if old.missed else old
        for name, old in before.items():
            if name not in known and (old.missed + 1 < LISTINGS_TO_FORGET or name in self.seen.drains):
                known[name] = old._replace(missed=old.missed + 1)
        self.memory = replace(
            self.memory,
            instances=known,
            asked=tuple(self._still_asked(new)),
            pressed_since_ms=self._pressed_since_ms(),
            boot_failures=0 if registered else self.memory.boot_failures,
            boot_retry_ms=0 if registered else self.memory.boot_retry_ms,
        )

    def _notice_hosts(self) -> Iterator[News]:
        """Remember the hosts, and yield what has become of them."""
        before = self.memory.hosts
        now = {host.id: HostKnown(name, host.fresh) for name, place in self.places.items() for host in place.hosts}
        now |= {host.id: HostKnown(host.provider_id, host.fresh) for host in self.foreign}
        self.memory = replace(self.memory, hosts=now)
        if now == before:
            return
        for host_id, known in now.items():
            old = before.get(host_id)
            if old is None and known.fresh:
                yield News("host-registered", host_id, known.instance)
            elif old is not None and old.fresh and not known.fresh:
                yield News("host-stale", host_id, known.instance)
        for host_id, old in before.items():
            if host_id not in now and old.fresh:
                yield News("host-left", host_id, old.instance)

    def _still_asked(self, new: int) -> Iterator[Asked]:
        """Yield what is not listed yet; whatever is new came for what was asked for first."""
        for asked in self.memory.asked:
            came = min(new, asked.count)
            new -= came
            if asked.count > came and self.seen.now_ms - asked.at_ms < self.policy.boot_timeout_ms:
                yield Asked(asked.at_ms, asked.count - came)

    def _pressed_since_ms(self) -> int | None:
        if self.seen.scaling.queue_depth <= self.policy.waiting_allowed:
            return None
        since_ms = self.memory.pressed_since_ms
        return self.seen.now_ms if since_ms is None else since_ms

    def _names(self, name: str) -> tuple[str, ...]:
        return (name, *self.places[name].host_ids)

    def _missing_drains(self) -> tuple[str, ...]:
        """Name the drained instances that were listed once and are not now."""
        known = self.memory.instances
        return tuple(name for name in self.seen.drains if name in known and name not in self.places)

    # Removing

    def _possible_removals(self) -> list[Remove]:
        """Return what to remove now: first what was never tried, so that what cannot be removed holds up nothing."""
        removals = sorted(self._removals(), key=lambda removal: removal.instance in self.seen.removing)
        left_ms = self.memory.removal_retry_ms - self.seen.now_ms
        if removals and left_ms > 0:
            held = amount(len(removals), "removal")
            self.notes.append(f"{held} held for {span(left_ms)}: the provider failed at one")
            return []
        return removals

    def _removals(self) -> Iterator[Remove]:
        for name, place in self.places.items():
            if place.instance.state != "draining":
                found = self._end_of_drained(name, place) if name in self.drained else self._end_of_failed(place)
                if found is not None:
                    cause, why = found
                    yield Remove(name, place.host_ids, cause, f"{why} → remove {name}")

    def _end_of_drained(self, name: str, place: Place) -> tuple[Cause, str] | None:
        if place.fresh:
            return None
        if place.holds:
            self.notes.append(f"{name} keeps its instance: its host is silent and holds a message")
            return None
        if not place.hosts:
            if any(host.holds and host.provider_id is None for host in self.foreign):
                self.notes.append(f"{name} is kept: a host of no known instance holds a message, and may be on it")
                return None
            return "drained", "drained, and its hosts have left"
        if self.seen.now_ms - self.drained[name] < SILENT_REMOVED_AFTER_MS:
            return None
        return "drained", f"drained {span(self.seen.now_ms - self.drained[name])} ago, silent, and holds nothing"

    def _end_of_failed(self, place: Place) -> tuple[Cause, str] | None:
        """Say why an instance that nobody has drained is to go; None: it is not."""
        if place.fresh or place.holds:
            return None
        instance, known = place.instance, self.memory.instances[place.instance.id]
        if instance.state == "failed":
            return ("failed" if known.host_ms else "boot-failed"), "the provider says that it failed"
        if instance.state == "stopped":
            return "stopped", "it has ended by itself"
        if not self._is_sure():
            return None
        if place.hosts:
            return self._end_of_short_lived(place)
        if known.host_ms is not None:
            if self.seen.now_ms - known.host_ms < self.policy.boot_timeout_ms:
                return None
            return "left", f"its host left {span(self.seen.now_ms - known.host_ms)} ago and none has come since"
        up_ms = self.seen.now_ms - self._started_ms(place)
        if up_ms < self.policy.boot_timeout_ms:
            return None
        return "boot-failed", f"no host has registered in {span(up_ms)}"

    def _end_of_short_lived(self, place: Place) -> tuple[Cause, str] | None:
        """Say why an instance is to go whose hosts registered, and fell silent before its boot timeout was over."""
        reported_ms = max(host.reported_ms for host in place.hosts)
        due_ms = self._started_ms(place) + self.policy.boot_timeout_ms
        if not reported_ms < due_ms <= self.seen.now_ms:
            return None
        return "boot-failed", f"its host registered, and has been silent for {span(self.seen.now_ms - reported_ms)}"

    def _started_ms(self, place: Place) -> int:
        since_ms = place.instance.since_ms
        if since_ms is not None and since_ms <= self.seen.now_ms:
            return since_ms
        return self.memory.instances[place.instance.id].first_ms

    def _is_sure(self) -> bool:
        return self.seen.now_ms - self.memory.watched_since_ms >= SURE_AFTER_MS

    def _count_failures(self, removals: Sequence[Remove]) -> None:
        """Remember that instances failed to boot: the first is replaced at once, the next ones after a while."""
        worked = sum(removal.cause == "failed" for removal in removals)
        failed = sum(removal.cause == "boot-failed" for removal in removals)
        self.memory = replace(self.memory, replacing=self.memory.replacing + worked + failed)
        if not failed:
            return
        failures = self.memory.boot_failures + 1
        wait_ms = min(BOOT_RETRY_FIRST_MS << min(failures - 2, 20), BOOT_RETRY_CEILING_MS) if failures > 1 else 0
        self.memory = replace(
            self.memory,
            boot_failures=failures,
            boot_retry_ms=self.seen.now_ms + wait_ms,
        )

    # Adding

    def _growth(self, removed: int) -> tuple[list[Add], Held | None]:
        """Return what to add, or why what is wanted is not added."""
        memory, policy, target = self.memory, self.policy, self.seen.scaling.desired_hosts
        capacity = self._capacity()
        missing = target - capacity
        wanted, why = self._wanted(capacity, missing)
        if missing <= 0:
            self.memory = replace(memory, replacing=0)
        if wanted <= 0:
            return [], None
        if self.seen.now_ms < memory.boot_retry_ms:
            wait = span(memory.boot_retry_ms - self.seen.now_ms)
            failed = f"held for {wait}: {amount(memory.boot_failures, 'instance')} in a row failed to boot"
            return [], Held("boot failures", f"{why}; {failed}")
        known = memory.instances.values()
        present = sum(one.missed < LISTINGS_TO_FORGET for one in known) - removed + memory.in_flight
        room = policy.max_hosts - present - sum(host.fresh for host in self.foreign)
        if room <= 0:
            allowed = f"{amount(policy.max_hosts, 'host')} {'is' if policy.max_hosts == 1 else 'are'}"
            return [], Held("most hosts", f"{why}; held: {allowed} the most allowed")
        count = min(wanted, room)
        replaces = min(memory.replacing, count)
        self.memory = replace(memory, replacing=memory.replacing - replaces)
        return [Add(present + count, count, f"{why} → add {count}", replaces, room - count)], None

    def _wanted(self, capacity: int, missing: int) -> tuple[int, str]:
        """Say how many hosts to add, were there room, and why."""
        signal, memory, policy = self.seen.scaling, self.memory, self.policy
        if missing > 0 and capacity <= 0 and signal.demand > 0:
            return missing, f"demand of {signal.demand} and no host"
        if missing > 0 and memory.pressed_since_ms is not None:
            pressed_ms = self.seen.now_ms - memory.pressed_since_ms
            if pressed_ms >= policy.scale_up_delay_ms:
                waited = f"more than {policy.waiting_allowed} have been waiting for {span(pressed_ms)}"
                return missing, f"{waited}, {capacity} of {amount(signal.desired_hosts, 'host')}"
        if capacity < policy.min_hosts:
            return policy.min_hosts - capacity, f"{amount(capacity, 'host')}, below the least of {policy.min_hosts}"
        if missing > 0 and memory.replacing > 0:
            return min(missing, memory.replacing), f"{amount(memory.replacing, 'instance')} failed"
        return 0, ""

    def _capacity(self) -> int:
        """Count the hosts that serve, and those that are on their way."""
        serving = sum(host.fresh and not host.draining for host in self.foreign)
        for name, place in self.places.items():
            if name in self.drained:
                continue
            fresh = place.fresh
            if fresh:
                serving += sum(not host.draining for host in fresh)
            else:
                serving += self._comes(place)
        return serving + self.memory.in_flight + sum(self._missed_lately())

    def _missed_lately(self) -> Iterator[bool]:
        """Say of each instance whether it may be there though a listing lacks it."""
        for name, known in self.memory.instances.items():
            yield 0 < known.missed < LISTINGS_TO_FORGET and name not in self.seen.drains

    def _comes(self, place: Place) -> bool:
        """Whether a host may be expected on an instance that has none now."""
        if place.instance.state not in ("pending", "running") or place.hosts:
            return False
        known, now_ms = self.memory.instances[place.instance.id], self.seen.now_ms
        if known.host_ms is not None:
            return now_ms - known.host_ms < LEFT_GRACE_MS
        return now_ms - self._started_ms(place) < self.policy.boot_timeout_ms

    # Draining

    def _redrains(self) -> Iterator[Drain]:
        """Drain what has come back on an instance that is drained, and an instance whose host was drained by itself."""
        for name in self.drained:
            place = self.places[name]
            if any(not host.draining for host in place.hosts):
                yield Drain(name, place.host_ids, f"a host came back on {name}, which is drained → drain it", "always")
            elif name not in self.seen.drains:
                yield Drain(name, place.host_ids, f"the host on {name} is drained → drain {name} with it", "always")

    def _lost(self) -> Iterator[Drain]:
        """Drain the instances whose hosts have been silent for long."""
        for name, place in self.places.items():
            if name in self.drained or not place.hosts or place.fresh or place.holds or not self._is_sure():
                continue
            silent_ms = self.seen.now_ms - max(host.reported_ms for host in place.hosts)
            if silent_ms >= LOST_AFTER_MS:
                yield Drain(name, place.host_ids, f"{name} silent for {span(silent_ms)} → drain it", "silent")

    def _idle(self) -> Iterator[Drain]:
        """Drain idle hosts above the target, the longest idle first."""
        live = sum(host.fresh and not host.draining for host in self.seen.hosts)
        surplus = live - self.seen.scaling.desired_hosts
        if surplus <= 0:
            return
        idle = sorted((since_ms, name) for name, since_ms in self._idle_places())
        if not idle:
            return
        oldest_ms = self.seen.now_ms - idle[0][0]
        for since_ms, name in idle:
            if self.seen.now_ms - since_ms < self.policy.idle_drain_ms:
                return
            place = self.places[name]
            if len(place.hosts) <= surplus:
                above = f"{surplus} above target, {len(idle)} idle, oldest idle {span(oldest_ms)}"
                surplus -= len(place.hosts)
                names = ", ".join(host.name for host in place.hosts)
                yield Drain(name, place.host_ids, f"{above} → drain {names}")

    def _idle_places(self) -> Iterator[tuple[str, int]]:
        for name, place in self.places.items():
            if name in self.drained or not place.hosts or place.instance.state == "draining":
                continue
            if any(host.draining or not host.fresh or host.holds for host in place.hosts):
                continue
            since = [host.idle_since_ms for host in place.hosts]
            known = [since_ms for since_ms in since if since_ms is not None]
            if len(known) == len(since):
                yield name, max(known)
