"""Looking for messages among very many, a bounded piece at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from atomic_celery.store.database import Noun
from atomic_celery.store.reads import Filter, MessageView

_MOST_HELD = 5000


@dataclass(frozen=True, slots=True)
class Found:
    """What one look found."""

    messages: tuple[MessageView, ...]
    """The newest first."""
    looked_at: int
    next_before: int | None
    """Where the next look goes on; None: there is nothing older."""


@dataclass(frozen=True, slots=True)
class HeldView:
    """A message that a holder has; it may run, or be the next one to."""

    holder: str
    id: int
    task_id: str | None
    task_name: str | None
    queue: str
    fence: int
    claimed_ms: int
    lease_until_ms: int


@dataclass(frozen=True, slots=True)
class Relative:
    """An unfinished message of a root."""

    id: int
    task_id: str | None
    task_name: str | None
    parent_id: str | None
    """The task that sent it; it may have ended."""
    state: str


class Searches(Noun):
    """Looks at messages. None reads more rows than it was told to."""

    noun = "searches"

    def messages(self, which: Filter, *, before: int | None, limit: int, window: int) -> Found:
        """Return unfinished messages that match among the newest *window* ones with ids below *before*.

        Args:
            which: All of it has to match.
            before: Only older ones than this message; None: from the newest on.
            limit: How many are returned at most.
            window: How many are looked at at most, a state apart from the others if *which* names one.
        """
        rows = self._many("search", before=before, limit=limit, window=window, **dataclasses.asdict(which))
        looked_at, down_to = rows[0][:2]
        found = tuple(MessageView(*row[2:]) for row in rows if row[2] is not None)
        if len(found) == limit:
            return Found(found, looked_at, found[-1].id)
        return Found(found, looked_at, down_to if looked_at == window else None)

    def held_by(self, host_ids: Sequence[str], limit: int = _MOST_HELD) -> list[HeldView]:
        """Return what these hosts hold, by host and in the order in which it was claimed, at most *limit*."""
        return [HeldView(*row) for row in self._many("held_by", host_ids=list(host_ids), limit=limit)]

    def family(self, root_id: str, limit: int) -> list[Relative]:
        """Return the newest unfinished messages of a root and its own, the latest first, at most *limit* + 1."""
        return [Relative(*row) for row in self._many("family", root_id=root_id, limit=limit)]
