"""``atomic events``: what happened to the fleet."""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import click

from atomic_celery import clock, operations, tables, trouble
from atomic_celery.cli.session import Session, command
from atomic_celery.store.fleet_events import KEPT, KINDS, FleetEvent

_LOOK_EVERY_S = 1.0

Look = Callable[[int], list[FleetEvent]]
"""Reads the latest events, at most so many, the latest last."""


class _Kind(click.Choice):  # type: ignore[type-arg]  # not a generic in every release of click
    """A kind of event; one that is none is answered with those like it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Take one of the kinds."""
        like = [kind for kind in KINDS if kind.endswith(f"-{value}")] or difflib.get_close_matches(str(value), KINDS)
        if value not in KINDS and like:
            self.fail(f"{value!r} is no kind of event; did you mean {' or '.join(like)}?", param, ctx)
        return super().convert(value, param, ctx)


@click.command()
@click.option("--kind", type=_Kind(KINDS), help="Only events of this kind.")
@click.option("--host", metavar="HOST", help="Only of this host, by its id or its name.")
@click.option("--instance", metavar="ID", help="Only of this instance: what a provider calls it.")
@click.option("--root", metavar="ID", help="Only of this workflow.")
@click.option("--limit", type=click.IntRange(1, KEPT), default=100, show_default=True, help="At most so many.")
@click.option("--follow", is_flag=True, help="Go on with new events, until interrupted; with --json, one a line.")
@command
def events(session: Session, limit: int, follow: bool, **about: Any) -> None:
    """Show fleet events, the latest last. The last 1000 are kept.

    What goes on with --follow outlives a database that is away for a while: that is said once, on stderr.
    """
    look = functools.partial(_recorded, session, about)
    if not follow:
        _say(session, look(limit))
        return
    with contextlib.suppress(KeyboardInterrupt):  # which is how one ends it
        for event in _as_they_come(look, limit):
            session.output.record(event) if session.output.as_json else session.output.line(_line(event))


def _as_they_come(look: Look, limit: int) -> Iterator[FleetEvent]:
    recorded = look(KEPT)
    yield from recorded[-limit:]
    while True:
        # Not "what is above the last": who records at the same time as others may commit after them.
        seen = {event.id for event in recorded}
        recorded = _recorded_at_last(look)
        yield from (event for event in recorded if event.id not in seen)


def _recorded_at_last(look: Look) -> list[FleetEvent]:
    """Look again after a moment, until the database answers."""
    said = False
    while True:
        clock.pause(_LOOK_EVERY_S)
        try:
            return look(KEPT)
        except trouble.StoreTrouble as error:
            if not said:
                click.echo(str(error), err=True)
            said = True


def _recorded(session: Session, about: Mapping[str, Any], limit: int) -> list[FleetEvent]:
    with trouble.bounded(session.store):
        host = about["host"] and operations.host_id(session.store, about["host"])
        return session.store.events.list(**{**about, "host": host}, limit=limit)[::-1]


def _say(session: Session, recorded: Sequence[FleetEvent]) -> None:
    if session.output.as_json:
        session.output.document(recorded)
    else:
        session.output.lines(map(_line, recorded))


def _line(event: FleetEvent) -> str:
    at = datetime.fromtimestamp(event.at_ms / 1000, timezone.utc).isoformat(sep=" ", timespec="seconds")
    about = {"host": event.host, "instance": event.instance, "root": event.root, **(event.detail or {})}
    facts = (f"{name}={_value(value)}" for name, value in about.items() if value not in (None, ""))
    return tables.printable(" ".join([at, event.kind, *facts]))


def _value(value: object) -> str:
    return value if isinstance(value, str) and " " not in value else json.dumps(value, ensure_ascii=False)
