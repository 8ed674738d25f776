"""The fleet at a glance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from django.http import HttpRequest

from atomic_celery import history, status
from atomic_celery.fleet import scaling
from atomic_celery.fleet.policy import Policy
from atomic_celery.store.store import Store
from django_admin import charts, project
from django_admin.pages import MOST_COUNTED, Context, FleetPage
from django_admin.results import results_url


@dataclass(frozen=True, slots=True)
class Total:
    """Messages of all queues in one state."""

    state: str
    count: int
    at_least: bool
    """Whether there may be more."""


class OverviewPage(FleetPage):
    """How much waits and runs, how much was done, how the hosts and the store are."""

    name = "overview"
    title = "Overview"

    def look(self, request: HttpRequest, store: Store) -> Context:
        """Read the numbers."""
        now_ms, hosts, drains, depths = (
            store.now_ms(),
            store.hosts.list(),
            store.hosts.drains(),
            store.reads.depths(MOST_COUNTED),
        )
        seen = status.compose(now_ms, hosts, drains, depths, store=store, version=store.schema.version())
        states = Counter(host.state for host in seen.hosts)
        lasting = [queue for queue in seen.queues if not queue.temporary]
        periods = history.read_all(store, now_ms)
        return {
            "seen": seen,
            "totals": [_total(lasting, state) for state in ("ready", "limited", "delayed", "running", "dead")],
            "oldest_ready_ms": max((queue.oldest_ready_ms or 0 for queue in lasting if queue.ready), default=None),
            "host_states": [(state, states[state]) for state in status.STATES if states[state]],
            "slots": sum(host.slots for host in seen.hosts if host.state != "stale"),
            "busy": sum(host.busy for host in seen.hosts if host.state != "stale"),
            "queues": lasting,
            "desired_hosts": scaling.read(store, Policy.of(store.settings)).desired_hosts,
            "periods": [(period, charts.throughput(period)) for period in periods],
            "version": store.reads.version(),
            "results_url": results_url(),
        }

    def _looked(self, request: HttpRequest, key: str | None) -> tuple[Context, str | None]:
        context, wrong = super()._looked(request, key)
        return (context, wrong) if wrong else ({**context, "write_trouble": project.write_trouble()}, None)


def _total(queues: Sequence[status.QueueStatus], state: str) -> Total:
    return Total(
        state,
        sum(getattr(queue, state) for queue in queues),
        any(state in queue.at_least for queue in queues),
    )
