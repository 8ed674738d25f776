"""Hosts: who they are, what they do, and letting them take no more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from django.http import HttpRequest

from atomic_celery import operations, status
from atomic_celery.status import HostStatus
from atomic_celery.store.fleet_events import FleetEvent
from atomic_celery.store.searches import HeldView
from atomic_celery.store.store import Store
from django_admin.actions import Action, Asked, Field, Outcome, outcome_of
from django_admin.events import told
from django_admin.pages import Context, FleetPage, filters, pager

EVENTS_SHOWN = 20
PAGE_SIZE = 100

Held = tuple[HeldView, int, int]
"""What a host holds, for how long it has, and how long its lease still lasts; milliseconds."""

_FILTERS = ("state", "text")


def _drain(store: Store, asked: Asked) -> Outcome:
    reason = asked.answers.get("reason", "")
    drains = [(host, operations.drain(store, host, reason=reason, asked_by=asked.by)) for host in asked.targets]
    return outcome_of(((host, drain.changed) for host, drain in drains), "draining", "it was asked before")


def _undrain(store: Store, asked: Asked) -> Outcome:
    drains = [(host, operations.undrain(store, host, asked_by=asked.by)) for host in asked.targets]
    return outcome_of(((host, drain.changed) for host, drain in drains), "drain taken back for", "no drain was asked")


def _forget(store: Store, asked: Asked) -> Outcome:
    forgotten = [(host, operations.forget_host(store, host, asked_by=asked.by)) for host in asked.targets]
    return outcome_of(forgotten, "forgotten", "it reports again, holds a message, or has left already")


class HostPage(FleetPage):
    """Every registered host, and one of them."""

    name = "hosts"
    one_name = "host"
    noun = "host"
    title = "Hosts"
    steers = (
        Action(
            name="drain",
            label="Drain",
            permission="drain_host",
            run=_drain,
            warning="They take no more, finish what they run, and stop. It applies to the instance: a worker that is "
            "started on it again takes nothing either, until the drain is taken back.",
            fields=(Field("reason", "Reason"),),
        ),
        Action(name="undrain", label="Take drain back", permission="drain_host", run=_undrain),
        Action(
            name="forget",
            label="Forget",
            permission="forget_host",
            run=_forget,
            warning="Only hosts that are stale and hold nothing are taken off the list. One that reports again "
            "enters it anew.",
            destroys=True,
        ),
    )

    def look(self, request: HttpRequest, store: Store) -> Context:
        """Read a page of the list, and what its hosts hold."""
        seen = _status(store)
        wanted = filters(request, _FILTERS)
        matching = [host for host in seen if _matches(host, wanted)]
        after = request.GET.get("after", "")
        begin = next((place for place, host in enumerate(matching) if _place(host) > after), len(matching))
        page = matching[begin : begin + PAGE_SIZE]
        by_host: dict[str, list[Held]] = defaultdict(list)
        for held in _held(store, [host.id for host in page]):
            by_host[held[0].holder].append(held)
        return {
            **pager(wanted, after=_place(page[-1]) if begin + PAGE_SIZE < len(matching) else None),
            "rows": [(host, self.address("change", host.id), by_host[host.id]) for host in page],
            "is_first": not after,
            "states": status.STATES,
            "shown": len(page),
            "total": len(matching),
        }

    def look_at(self, request: HttpRequest, store: Store, key: str) -> Context | None:
        """Read everything about one host."""
        host = next((host for host in _status(store) if host.id == key), None)
        if host is None:
            return None
        return {
            "host": host,
            "held": _held(store, [key]),
            "rows": told(store, _events(store, host)),
        }


def _status(store: Store) -> Sequence[HostStatus]:
    now_ms, hosts, drains = store.now_ms(), store.hosts.list(), store.hosts.drains()
    return status.compose(now_ms, hosts, drains, (), store=store, version=None).hosts


def _events(store: Store, host: HostStatus) -> list[FleetEvent]:
    """Read what happened to a host last, and to its instance: that is what a controller knows."""
    instance = host.provider_id or host.id
    about = (
        store.events.list(host=host.id, limit=EVENTS_SHOWN),
        store.events.list(instance=instance, limit=EVENTS_SHOWN),
    )
    found = {event.id: event for events in about for event in events}
    return [found[event_id] for event_id in sorted(found, reverse=True)[:EVENTS_SHOWN]]


def _matches(host: HostStatus, wanted: dict[str, str]) -> bool:
    if "state" in wanted and host.state != wanted["state"]:
        return False
    text = wanted.get("text", "").lower()
    labels = [f"{key}={value}" for key, value in host.labels.items()]
    return any(text in str(fact).lower() for fact in (host.id, host.name, host.provider_id, *labels, *host.queues))


def _place(host: HostStatus) -> str:
    return f"{host.name}\n{host.id}"


def _held(store: Store, host_ids: Sequence[str]) -> list[Held]:
    now_ms = store.now_ms()
    return [
        (message, now_ms - message.claimed_ms, max(0, message.lease_until_ms - now_ms))
        for message in store.searches.held_by(host_ids)
    ]
