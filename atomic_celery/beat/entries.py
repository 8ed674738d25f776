"""What is to be run periodically, and where that is written down: the Celery configuration, or somewhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from celery.utils.log import get_logger

from atomic_celery.beat.timetable import Timetable
from atomic_celery.store.schedules import Progress

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One periodic task."""

    name: str
    scheduled: Any
    """The `celery.beat.ScheduleEntry`: task, arguments, options."""
    timetable: Timetable
    fingerprint: str
    """Of all that its due times depend on: another one, and it begins anew."""
    begins_ms: int
    """From when on runs are due where nothing is known of it yet."""
    starts_ms: float = -math.inf
    """Before this it is not run."""
    ends_ms: float = math.inf
    """From when on it is not run any more."""
    once: bool = False
    """Whether it is over after one run."""
    runs_before: int = 0
    """How often it ran before anything was known of it."""

    def begin(self, known: Progress | None) -> Progress:
        """Return where it stands when it begins, or begins anew."""
        runs = known.total_runs if known is not None else self.runs_before
        return Progress(self.name, self.fingerprint, self.begins_ms, 0 if self.once else runs)


class Source(Protocol):
    """Where entries are written down."""

    def changed(self) -> bool:
        """Whether `read` may answer otherwise than the last time."""
        ...

    def read(self, now_ms: int) -> list[Entry]:
        """Return what is to be run, for a database in which it is *now_ms*."""
        ...

    def ran(self, entry: Entry, progress: Progress) -> None:
        """Hear that an entry ran, after that was committed."""
        ...

    def retire(self, entry: Entry) -> None:
        """Hear that an entry is over; called again, now and then, while `read` returns it."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


@dataclass(slots=True)
class Configured:
    """Entries of the Celery configuration: ``beat_schedule``, and what ``add_periodic_task`` put there."""

    entries: Mapping[str, Any]
    _names: frozenset[str] = field(default=frozenset(), init=False)

    def changed(self) -> bool:
        """Whether entries came or went."""
        return self._names != frozenset(self.entries)

    def read(self, now_ms: int) -> list[Entry]:
        """Return all entries that make sense."""
        self._names = frozenset(self.entries)
        found = (_entry(scheduled, now_ms) for scheduled in self.entries.values())
        return [entry for entry in found if entry is not None]

    def ran(self, entry: Entry, progress: Progress) -> None:
        """Nothing: the configuration does not keep count."""

    def retire(self, entry: Entry) -> None:
        """Nothing: what is in the configuration has no end."""

    def close(self) -> None:
        """Nothing to let go of."""


def _entry(scheduled: Any, now_ms: int) -> Entry | None:
    try:
        timetable = Timetable(scheduled.schedule)
        return Entry(scheduled.name, scheduled, timetable, timetable.fingerprint(), now_ms)
    except Exception:
        logger.exception("the periodic task %r is left out: its schedule cannot be read", scheduled.name)
        return None
