"""Durations, moments and other people's text, as the fleet's pages write them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from django import template
from django.utils import timezone as django_timezone
from django.utils.formats import date_format

from atomic_celery import payload, tables
from atomic_celery.status import QueueStatus

register = template.Library()

_LONGEST = 300


@register.filter
def span(duration_ms: float | None) -> str:
    """Write milliseconds in their two largest units."""
    return tables.span(duration_ms)


@register.filter
def seconds(duration_s: float) -> str:
    """Write seconds in their two largest units."""
    return tables.span(duration_s * 1000)


@register.filter
def moment(at_ms: int | None) -> str:
    """Write a database timestamp in the site's time zone, to the second: ``2026-12-01 03:00:00 UTC``."""
    return tables.NOTHING if at_ms is None else f"{_date(at := _local(at_ms))} {at:%H:%M:%S %Z}"


@register.filter
def minute(at_ms: int) -> str:
    """Write one to the minute, and without the zone: where another one stands next to it."""
    return f"{_date(at := _local(at_ms))} {at:%H:%M}"


def _local(at_ms: int) -> datetime:
    at: datetime = django_timezone.localtime(datetime.fromtimestamp(at_ms / 1000, timezone.utc))
    return at


def _date(at: datetime) -> str:
    return str(date_format(at, "Y-m-d"))


@register.filter
def zone(at_ms: int) -> str:
    """Write the time zone that a timestamp is shown in."""
    return f"{_local(at_ms):%Z}"


@register.filter
def machine_time(at_ms: int) -> str:
    """Write a database timestamp for the attribute ``datetime``."""
    return datetime.fromtimestamp(at_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")


@register.filter
def said(value: Any, longest: int = _LONGEST) -> str:
    """Make somebody else's text fit to be read: on one line, without control characters and passwords, not endless."""
    if value is None or value == "":
        return tables.NOTHING
    text = payload.without_passwords(str(value)[: 4 * longest])
    text = tables.printable(text[:longest])
    return text if len(str(value)) <= longest else f"{text}…"


@register.filter
def counted(value: int, at_least: bool = False) -> str:
    """Write a count with its thousands apart, and a plus where it is only a lower bound."""
    return f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}") + ("+" if at_least else "")


@register.filter
def depth(queue: QueueStatus, state: str) -> str:
    """Write how many messages of a queue are in a state."""
    return str(counted(getattr(queue, state), state in queue.at_least))
