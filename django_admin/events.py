"""What happened to the fleet: the last thousand events, to read and to take along."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.urls import path

from atomic_celery import errors, payload
from atomic_celery.store.fleet_events import KEPT, KINDS, FleetEvent
from atomic_celery.store.store import Store
from django_admin import project
from django_admin.apps import LABEL
from django_admin.pages import Context, FleetPage, explained, filters, is_number, pager

PAGE_SIZE = 50

_FILTERS = ("kind", "host", "instance", "root")
_COLUMNS = ("id", "at_ms", "kind", "host", "instance", "root", "detail")


class EventPage(FleetPage):
    """The timeline."""

    name = "events"
    title = "Fleet events"

    def get_urls(self) -> list[Any]:
        """Add the exports."""
        view = self.admin_site.admin_view(self.export_view)
        return [path("~export/", view, name=f"{LABEL}_{self.opts.model_name}_export"), *super().get_urls()]

    def look(self, request: HttpRequest, store: Store) -> Context:
        """Read a page of events."""
        wanted = filters(request, _FILTERS)
        before = request.GET.get("before", "")
        older_than = int(before) if is_number(before) else None
        events = store.events.list(**_asked(wanted), before=older_than, limit=PAGE_SIZE + 1)
        page = events[:PAGE_SIZE]
        return {
            **pager(wanted, before=page[-1].id if len(events) > PAGE_SIZE else None),
            "rows": told(store, page),
            "is_first": not before,
            "kinds": KINDS,
            "export_url": self.address("export"),
        }

    def export_view(self, request: HttpRequest) -> HttpResponse:
        """Send all events that match as CSV or JSON."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        kind = request.GET.get("format", "csv")
        if kind not in ("csv", "json"):
            return HttpResponseBadRequest("The format is csv or json.")
        try:
            with project.looking() as store:
                events = store.events.list(**_asked(filters(request, _FILTERS)), limit=KEPT + 1)
        except (errors.AtomicError, DatabaseError) as error:
            return HttpResponse(explained(error), status=503, content_type="text/plain; charset=utf-8")
        write, content_type = (_csv, "text/csv") if kind == "csv" else (_json, "application/json")
        text = write(store, events)
        response = HttpResponse(text, content_type=f"{content_type}; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="fleet-events.{kind}"'
        return response


def _asked(wanted: dict[str, str]) -> dict[str, Any]:
    return {name: wanted.get(name) for name in _FILTERS}


def told(store: Store, events: Iterable[FleetEvent]) -> list[tuple[FleetEvent, list[tuple[str, str]]]]:
    """Return events with what they say beside whom they concern, fit to be shown."""
    return [
        (event, [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in detail.items()])
        for event in events
        for detail in [_detail(store, event) or {}]
    ]


def _detail(store: Store, event: FleetEvent) -> Any:
    return payload.masked(event.detail, store.settings.mask)


def _csv(store: Store, events: Iterable[FleetEvent]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    for event in events:
        facts = {**asdict(event), "detail": json.dumps(_detail(store, event))}
        writer.writerow([_harmless(facts[column]) for column in _COLUMNS])
    return text.getvalue()


def _harmless(value: object) -> str:
    """Keep spreadsheets from taking text for a formula."""
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _json(store: Store, events: Iterable[FleetEvent]) -> str:
    return json.dumps([{**asdict(event), "detail": _detail(store, event)} for event in events])
