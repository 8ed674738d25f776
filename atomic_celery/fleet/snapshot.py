"""What the fleet controller decides on: instances, the hosts on them, drains and the signal, at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atomic_celery.fleet import scaling

if TYPE_CHECKING:
    from atomic_celery.fleet.policy import Policy
    from atomic_celery.fleet.provisioner import Instance
    from atomic_celery.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSeen:
    """A registered host."""

    id: str
    name: str
    provider_id: str | None = None
    reported_ms: int
    fresh: bool
    """Whether it reported lately."""
    idle_since_ms: int | None = None
    """Since when it has held nothing; None: it holds something, or has not said so."""
    draining: bool = False
    holds: bool = False
    """Whether it holds a message, also under a lease that ran out and nobody has reclaimed yet."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The fleet at one moment; times are the database's."""

    now_ms: int
    instances: Sequence[Instance]
    """What the provider listed."""
    hosts: Sequence[HostSeen]
    drains: Mapping[str, int]
    """When a drain was asked for an instance, or for a host that does not know its instance."""
    scaling: scaling.Scaling
    removing: frozenset[str] = frozenset()
    """Drained instances that a controller has begun to remove."""


@dataclass(slots=True)
class Place:
    """An instance and what is known to be on it."""

    instance: Instance
    hosts: list[HostSeen] = field(default_factory=list)
    fresh: list[HostSeen] = field(default_factory=list)
    """Those of the hosts that reported lately."""

    @property
    def holds(self) -> bool:
        """Whether a host on it holds a message."""
        return any(host.holds for host in self.hosts)

    @property
    def host_ids(self) -> tuple[str, ...]:
        """Ids of the hosts on it that do not know its name, registered or not."""
        nameless = [host.id for host in self.hosts if host.provider_id != self.instance.id]
        listed = self.instance.host_id
        if listed is not None and listed not in nameless and all(host.id != listed for host in self.hosts):
            nameless.append(listed)
        return tuple(nameless)

    def asked_ms(self, drains: Mapping[str, int]) -> int | None:
        """Return when a drain of it was asked for; None: it was not."""
        names = (self.instance.id, *self.host_ids)
        return min((drains[name] for name in names if name in drains), default=None)


def match(instances: Sequence[Instance], hosts: Sequence[HostSeen]) -> tuple[dict[str, Place], list[HostSeen]]:
    """Put each host on its instance, by provider id or else by the host id that was listed; return the rest, too."""
    places = {instance.id: Place(instance) for instance in instances}
    by_host = {place.instance.host_id: place for place in places.values() if place.instance.host_id is not None}
    foreign = []
    for host in hosts:
        place = places.get(host.provider_id) if host.provider_id is not None else None
        place = place or by_host.get(host.id)
        if place is None:
            foreign.append(host)
        else:
            place.hosts.append(host)
            if host.fresh:
                place.fresh.append(host)
    return places, foreign


def read(store: Store, policy: Policy, instances: Sequence[Instance]) -> Snapshot:
    """Read all but the instances, which must have been listed before: a host that registers meanwhile is seen."""
    holders = store.loads.holders()
    hosts, drains, now_ms = store.hosts.list(), store.hosts.drains(), store.now_ms()
    stale_ms = round(store.settings.stale_after_s * 1000)
    return Snapshot(
        now_ms,
        instances,
        [
            HostSeen(
                id=host.id,
                name=host.name,
                provider_id=host.provider_id,
                reported_ms=host.reported_ms,
                fresh=now_ms - host.reported_ms <= stale_ms,
                idle_since_ms=host.idle_since_ms,
                draining=host.draining_ms is not None,
                holds=host.id in holders,
            )
            for host in hosts
        ],
        {drain.instance: drain.asked_ms for drain in drains},
        scaling.read(store, policy),
        frozenset(drain.instance for drain in drains if drain.removing_ms is not None),
    )
