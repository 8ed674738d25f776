"""The fleet's controller: who leads it, what was planned and why, how large the fleet was; and all other terms."""

from __future__ import annotations

from urllib.parse import unquote

from django.http import HttpRequest

from atomic_celery import history, operations
from atomic_celery.fleet import standing
from atomic_celery.store.store import Store
from django_admin import charts, models
from django_admin.actions import Action, Asked, Outcome, outcome_of
from django_admin.pages import Context, FleetPage

_FIRST_PERIOD = "1h"


def _resign(store: Store, asked: Asked) -> Outcome:
    resigned = []
    for target in asked.targets:
        fence, _, quoted = target.partition(" ")
        name = unquote(quoted)
        ended = fence.isascii() and fence.isdigit() and operations.resign(store, name, int(fence), asked_by=asked.by)
        resigned.append((name, bool(ended)))
    return outcome_of(resigned, "ended", "it was over, or somebody else leads already")


class TermPage(FleetPage):
    """Every name that somebody leads under, or did."""

    name = "terms"
    noun = "term"
    title = "Controller and terms"
    steers = (
        Action(
            name="resign",
            label="End term",
            permission="operate_term",
            run=_resign,
            warning="Whoever leads now stops at once, and whoever asks first leads next; it may be the same one again.",
        ),
    )

    def look(self, request: HttpRequest, store: Store) -> Context:
        """Read the terms, and what the fleet's controller has left."""
        names = {host.id: host.name for host in store.hosts.list()}
        terms = store.terms.list()
        return {
            "rows": [(term, names.get(term.holder)) for term in terms],
            "controller": standing.read(store),
            "events_url": self.address_of(request, models.FleetEvent),
            **_size(store, request.GET.get("period", _FIRST_PERIOD)),
        }


def _size(store: Store, name: str) -> Context:
    period = history.PERIODS.get(name, history.PERIODS[_FIRST_PERIOD])
    [begun_ms, *_] = history.begins_of(period, store.now_ms())
    return {
        "period": period,
        "periods": list(history.PERIODS),
        "chart": charts.size(period, begun_ms, store.controllers.sizes(begun_ms, period.width_s)),
    }
