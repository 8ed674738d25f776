"""Terms: who leads, since when, making way for somebody else; and what the fleet's controller has planned."""

from __future__ import annotations

from urllib.parse import unquote

from django.http import HttpRequest

from atomic_celery import operations
from atomic_celery.fleet.controller import TERM
from atomic_celery.store.store import Store
from django_admin.actions import Action, Asked, Outcome, outcome_of
from django_admin.pages import Context, FleetPage

_LOOKED_BACK_MS = 600_000


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
    title = "Terms"
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
        """Read the terms."""
        names = {host.id: host.name for host in store.hosts.list()}
        terms = store.terms.list()
        now_ms, plan = store.now_ms(), store.controllers.load(TERM)
        samples = store.controllers.samples(now_ms - _LOOKED_BACK_MS)
        return {
            "rows": [(term, names.get(term.holder)) for term in terms],
            "plan": plan,
            "planned_ago_ms": None if plan is None else now_ms - plan.ticked_ms,
            "sample": samples[-1] if samples else None,
        }
