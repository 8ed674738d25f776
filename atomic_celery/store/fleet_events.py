"""What happened to the fleet, for people who ask afterwards."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from atomic_celery.store.connection import Row
from atomic_celery.store.database import Noun

Kind = Literal[
    "controller-active",
    "controller-standby",
    "scale-up",
    "scale-up-held",
    "drain-asked",
    "drain-forgotten",
    "drained",
    "removed",
    "boot-failed",
    "replaced",
    "provider-degraded",
    "provider-recovered",
    "host-registered",
    "host-left",
    "host-stale",
    "root-paused",
    "root-resumed",
    "root-cancelled",
    "root-changed",
    "root-warned",
    "root-budget-exceeded",
    "message-dead",
    "message-deleted",
    "message-requeued",
    "term-resigned",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

KEPT = 1000
"""How many events are kept; two recorded at once may leave one more until the next."""


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """One event."""

    id: int
    at_ms: int
    kind: str
    """One of `KINDS`, or one that a later release has added."""
    host: str | None
    instance: str | None
    root: str | None
    detail: Mapping[str, Any] | None


_COLUMNS = [field.name for field in dataclasses.fields(FleetEvent)]


class FleetEvents(Noun):
    """The last `KEPT` events."""

    noun = "fleet_events"

    def record(
        self,
        kind: Kind,
        *,
        host: str | None = None,
        instance: str | None = None,
        root: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Record that something happened, now.

        Args:
            kind: What.
            host: The id of the host it happened to.
            instance: The instance, as its provider calls it.
            root: The workflow.
            detail: More about it; JSON, never a secret.

        Atomicity: joins the caller's transaction, so that it is recorded only if it happened.
        """
        self._exec(
            "record",
            kind=kind,
            host=host,
            instance=instance,
            root=root,
            detail=None if detail is None else json.dumps(dict(detail)),
            kept=KEPT,
        )

    def list(
        self,
        *,
        kind: Kind | None = None,
        host: str | None = None,
        instance: str | None = None,
        root: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[FleetEvent]:
        """Return events that match all that is given, the latest first, at most *limit*.

        Args:
            kind: Only of this kind.
            host: Only of this host.
            instance: Only of this instance.
            root: Only of this workflow.
            before: Only older than the event of this id: the last of the page before.
            limit: How many at most.
        """
        rows = self._many(
            "list",
            kind=kind,
            host=host,
            instance=instance,
            root=root,
            before=before,
            limit=limit,
        )
        return [_event(row) for row in rows]


def _event(row: Row) -> FleetEvent:
    values = dict(zip(_COLUMNS, row, strict=True))
    values["detail"] = json.loads(values["detail"] or "null")
    return FleetEvent(**values)
