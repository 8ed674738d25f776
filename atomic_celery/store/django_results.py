"""The rows of django-celery-results, written together with the end of a claim."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from atomic_celery.store.database import Noun
from atomic_celery.store.records import Held
from atomic_celery.store.results import Finisher

logger = logging.getLogger(__name__)

UTC, LOCAL = "+0 days", "localtime"
"""In which time zone SQLite keeps Django's times, as one of its modifiers."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """What is known of a task; its fields are the columns."""

    task_id: str
    status: str
    content_type: str
    content_encoding: str
    result: str | None
    traceback: str | None
    meta: str | None
    task_name: str | None = None
    task_args: str | None = None
    task_kwargs: str | None = None
    worker: str | None = None
    periodic_task_name: str | None = None
    zone: str = UTC


@dataclass(frozen=True, slots=True)
class CounterOpened:
    """A chord of which so many parts are to be counted."""

    group_id: str
    sub_tasks: str
    count: int


@dataclass(frozen=True, slots=True)
class CounterGrown:
    """A chord of which so many more parts are to be counted, and which they are."""

    group_id: str
    sub_tasks: str
    more: int


@dataclass(frozen=True, slots=True)
class CounterPart:
    """A part of a chord that ended, and what finishes the chord if it was the last."""

    group_id: str
    finisher: Finisher


@dataclass(frozen=True, slots=True)
class CounterClosed:
    """A chord whose end has been dealt with."""

    group_id: str


class DjangoResults(Noun):
    """The verbs of their life."""

    noun = "django_results"

    def record(self, rows: Sequence[TaskRow]) -> None:
        """Record what tasks came to.

        Atomicity: one statement; joins the caller's transaction.
        """
        latest: dict[str, dict[str, Any]] = {row.task_id: asdict(row) for row in rows}
        if self._database.dialect == "sqlite":
            self._exec("record", rows=list(latest.values()), zone=rows[-1].zone)
        else:
            self._exec("record", rows=list(latest.values()))

    def record_held(self, row: TaskRow, held: Held) -> bool:
        """Record how far a task has come, as the holder of its message; False: it is not ours, nothing was recorded.

        Atomicity: one transaction; joins the caller's, and that of a guest.
        """
        with self._joining(), self._database.transaction("record"):
            if self._one("hold", id=held[0], fence=held[1]) is None:
                return False
            self.record([row])
        return True

    def open_counters(self, counters: Sequence[CounterOpened]) -> None:
        """Begin to count the parts of chords.

        Atomicity: one statement; joins the caller's transaction.
        """
        self._exec("open_counters", counters=[asdict(counter) for counter in counters])

    def grow_counter(self, grown: CounterGrown) -> None:
        """Count more parts of a chord.

        Atomicity: one statement; joins the caller's transaction.
        """
        self._exec("grow_counter", **asdict(grown))

    def count(self, parts: Sequence[CounterPart]) -> list[Finisher]:
        """Count parts that ended.

        Atomicity: one statement; joins the caller's transaction.

        Returns:
            What finishes the chords that this made full, to be published in the same transaction.
        """
        finishers = {part.group_id: part.finisher for part in parts}
        rows = self._many("count_parts", group_ids=[part.group_id for part in parts])
        left = {str(group_id): int(count) for group_id, count in rows}
        for group_id, count in Counter(part.group_id for part in parts if part.group_id not in left).items():
            logger.warning("Can't find ChordCounter for Group %s: %d parts were not counted", group_id, count)
        return [finishers[group_id] for group_id, count in left.items() if count == 0]

    def close_counters(self, group_ids: Sequence[str]) -> None:
        """Forget chords.

        Atomicity: one statement; joins the caller's transaction.
        """
        self._exec("close_counters", group_ids=list(group_ids))
