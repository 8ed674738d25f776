"""What there is to say in Prometheus' words. Counts only: no host, root, URL or secret ever gets in here.

``atomic_fleet_…`` and ``atomic_cluster_…`` are facts of the whole fleet, the same whoever says them: of several servers
take the ``max``. ``atomic_instance_…`` are facts of the one process that says them, a worker or a server: ``sum`` them.
While the database cannot be read a server says only ``atomic_fleet_store_up 0`` and its own facts, so that nothing acts
on old numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from atomic_celery.errors import ConfigError
from atomic_celery.history import BEGAN
from atomic_celery.tally import BOUNDS_S, Total

if TYPE_CHECKING:
    from atomic_celery.fleet.reading import Reader
    from atomic_celery.fleet.scaling import Scaling
    from atomic_celery.store.traffic import Kind

try:
    import prometheus_client
    from prometheus_client import core
    from prometheus_client.utils import floatToGoString
except ImportError:  # pragma: no cover - said by `Exposition`
    prometheus_client = None  # type: ignore[assignment]

_FLEET = {
    "desired_hosts": "Hosts that the policy wants",
    "desired_workers": "Desired hosts times workers per host",
    "demand": "Messages that could run at once",
    "queue_depth": "Messages that wait and could start now",
    "running": "Messages that somebody holds",
    "hosts": "Hosts that reported lately",
    "min_hosts": "The policy: hosts kept however idle",
    "max_hosts": "The policy: hosts never exceeded",
    "workers_per_host": "The policy: slots that hosts start with",
}


class Exposition:
    """Writes what a kind of it collects as Prometheus text.

    Raises:
        ConfigError: What this needs is not installed.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        if prometheus_client is None:
            raise ConfigError("metrics need prometheus-client: pip install 'atomic_celery[metrics]'")
        self._registry = prometheus_client.CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """Return all metrics as they are now."""
        return prometheus_client.generate_latest(self._registry)

    def collect(self) -> Iterator[Any]:
        """Yield the metrics, for the registry."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Working:
    """What one worker does at the moment, and has done since it started."""

    slots: int
    busy: int
    leases: int
    draining: bool
    poll_failures: int
    totals: Mapping[Kind, Total]
    """What has begun and ended."""


class WorkerExposition(Exposition):
    """What one worker does: facts of this instance, which asks no database."""

    def __init__(self, look: Callable[[], Working]) -> None:
        super().__init__()
        self._look = look

    def collect(self) -> Iterator[Any]:
        """Yield the metrics, for the registry."""
        seen = self._look()
        slots = core.GaugeMetricFamily("atomic_instance_slots", "Slots; none is idle while it drains", labels=["state"])
        slots.add_metric(["busy"], seen.busy)
        slots.add_metric(["idle"], 0 if seen.draining else max(0, seen.slots - seen.busy))
        yield slots
        yield core.GaugeMetricFamily("atomic_instance_leases", "Messages that it holds", value=seen.leases)
        yield core.GaugeMetricFamily("atomic_instance_draining", "Whether it takes no more", value=int(seen.draining))
        failures = seen.poll_failures
        yield core.GaugeMetricFamily("atomic_instance_poll_failures", "Failed polls in a row", value=failures)
        yield from _attempts({kind: total for kind, total in seen.totals.items() if kind not in BEGAN})
        waited = sum((total for kind, total in seen.totals.items() if kind in BEGAN), Total())
        yield _histogram("wait", "How long messages had been ready, or at a gate, when they first began", waited)


def _attempts(totals: Mapping[Kind, Total]) -> Iterator[Any]:
    attempts = core.CounterMetricFamily("atomic_instance_attempts", "Attempts that ended", labels=["outcome"])
    for outcome, total in totals.items():
        attempts.add_metric([outcome], total.count)
    yield attempts
    yield _histogram("run", "How long attempts ran, however they ended", sum(totals.values(), Total()))


def _histogram(name: str, meaning: str, total: Total) -> Any:
    bounds = [*map(floatToGoString, BOUNDS_S), "+Inf"]
    buckets = list(zip(bounds, accumulate(total.counts), strict=True))
    return core.HistogramMetricFamily(f"atomic_instance_{name}_seconds", meaning, buckets, sum_value=total.sum_s)


class FleetExposition(Exposition):
    """What a reading of the scaling signal comes to, and what this server does."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self._reader = reader

    def collect(self) -> Iterator[Any]:
        """Yield the metrics, for the registry."""
        reading = self._reader.read()
        up = reading.scaling is not None
        yield core.GaugeMetricFamily("atomic_fleet_store_up", "Whether the database can be read", value=int(up))
        if reading.scaling is not None:
            yield from _of_the_fleet(reading.scaling)
        yield from self._of_this_server()

    def _of_this_server(self) -> Iterator[Any]:
        for name, meaning, value in (
            ("reads", "Reads of the database by this server", self._reader.reads_count),
            ("read_failures", "Those that failed", self._reader.failures_count),
            ("read_seconds", "How long they took together", self._reader.took_s),
        ):
            yield core.CounterMetricFamily(f"atomic_instance_{name}", meaning, value=value)


def _of_the_fleet(scaling: Scaling) -> Iterator[Any]:
    for name, meaning in _FLEET.items():
        yield core.GaugeMetricFamily(f"atomic_fleet_{name}", meaning, value=getattr(scaling, name))
    slots = core.GaugeMetricFamily("atomic_fleet_slots", "Slots of hosts that reported lately", labels=["state"])
    slots.add_metric(["busy"], scaling.busy_slots)
    slots.add_metric(["idle"], scaling.idle_slots)
    yield slots
    yield core.GaugeMetricFamily(
        "atomic_cluster_slot_demand", "Slots that the work could use at once", value=scaling.demand
    )
    yield core.GaugeMetricFamily(
        "atomic_cluster_oldest_seconds",
        "How long the message has been waiting that is first in line for longest",
        value=scaling.oldest_ms / 1000,
    )
    yield core.GaugeMetricFamily(
        "atomic_cluster_inexact", "Whether the counts are only lower bounds", value=int(not scaling.exact)
    )
