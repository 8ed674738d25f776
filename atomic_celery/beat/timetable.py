"""When a periodic task is due: what a Celery schedule says about any moment the caller names.

Celery's schedules ask the machine's clock; here they are told the database's time, and also about moments that have
passed, to find every run that was due since the last one. All moments are milliseconds since 1970 UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Literal

from celery import schedules

MISSED = Literal["skip", "last", "all"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)
_DAY_MS = 24 * 3600 * 1000
_BLUR_MS, _BEYOND_BLUR_MS = 1000, 60_000  # the sun's events are found to a tenth of a second
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do about an entry."""

    do: Literal["run", "move", "wait"]
    """Run it; let it stand at another moment without a run; or nothing yet."""
    at_ms: float
    """The run's due time; where it stands from now on; or when to ask again (infinity: never)."""


class Timetable:
    """One schedule, and how to read it."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule
        self._zone = _zone_of(schedule)
        self._decides = not _is_celerys(schedule, "is_due")
        # Older releases of Celery subtract local times over a change to summer time as if there were none.
        self._told_in = timezone.utc if _is_celerys(schedule, "remaining_estimate") else self._zone
        self._every = _interval_of(schedule)

    def judge(self, last_ms: int, now_ms: int, missed: MISSED, late_ms: int) -> Verdict:
        """Say what to do at *now_ms* about an entry that ran last at *last_ms*. Pure.

        Args:
            last_ms: The due time of its last run, or from when on its runs are due.
            missed: What becomes of runs that are more than *late_ms* late.
        """
        if self._is_from_another_time(last_ms, now_ms):
            return Verdict("move", now_ms)
        if self._decides:
            return self._ask(last_ms, now_ms)
        first_ms = self.after(last_ms, now_ms)
        if first_ms > now_ms:
            return Verdict("wait", first_ms)
        deadline_ms = self._starting_deadline_ms()
        if deadline_ms is not None and first_ms < now_ms - deadline_ms:
            return Verdict("move", self._latest(last_ms, now_ms - deadline_ms - 1, now_ms))
        if missed == "all" or first_ms >= now_ms - late_ms:
            return Verdict("run", first_ms)
        latest_missed_ms = self._latest(last_ms, now_ms - late_ms - 1, now_ms)
        in_time_ms = self.after(latest_missed_ms, now_ms)
        if in_time_ms <= now_ms:
            return Verdict("run", in_time_ms)
        return Verdict("run" if missed == "last" else "move", latest_missed_ms)

    def after(self, last_ms: float, now_ms: int) -> float:
        """Return when it is due next after *last_ms*; infinity if never again."""
        if self._every is not None:
            return math.ceil(last_ms + self._every / _MILLISECOND)
        due_ms = self._estimate(last_ms, now_ms)
        if due_ms <= last_ms + _BLUR_MS and isinstance(self._schedule, schedules.solar):
            due_ms = self._estimate(last_ms + _BEYOND_BLUR_MS, now_ms)  # found the same event once more
        return due_ms if due_ms > last_ms else math.inf

    def owing(self, since_ms: int, until_ms: int, now_ms: int) -> int:
        """Return from when on to count for one run to be owed: the latest that is due from *since_ms* to *until_ms*.

        Where none is, it is the first after *since_ms*.
        """
        lead_ms = 1 if self._every is None else math.ceil(self._every / _MILLISECOND)
        begins_ms = since_ms - lead_ms
        if self.after(begins_ms, now_ms) <= until_ms:
            begins_ms = self._latest(begins_ms, until_ms, now_ms) - lead_ms
        return begins_ms

    def fingerprint(self) -> str:
        """Name the schedule, the same in every process and after every restart."""
        schedule = self._schedule
        if self._every is not None:
            return f"every {self._every.total_seconds()} s"
        if isinstance(schedule, schedules.crontab):
            fields = (getattr(schedule, f"_orig_{name}") for name in _CRON_FIELDS)
            return f"{_name(schedule)} {' '.join(map(_cron_text, fields))} {self._zone}"
        return f"{_name(schedule)} {_ADDRESS.sub('', repr(schedule))} {self._zone}"

    def _is_from_another_time(self, last_ms: int, now_ms: int) -> bool:
        """Whether the clock was set back so that *last_ms* says nothing any more.

        An interval then counts from now. A time of day that had its run before the clock went back must not have a
        second one; but a clock that was days ahead was simply wrong.
        """
        return last_ms > now_ms + (0 if self._every is not None else _DAY_MS)

    def _latest(self, last_ms: int, until_ms: int, now_ms: int) -> int:
        """Return the latest due time up to *until_ms*; there must be one after *last_ms*."""
        if self._every is not None:
            every_ms = self._every / _MILLISECOND
            return math.ceil(last_ms + (until_ms - last_ms) // every_ms * every_ms)
        low_ms, high_ms = last_ms, until_ms
        while high_ms - low_ms > 1:
            middle_ms = (low_ms + high_ms) // 2
            if self.after(middle_ms, now_ms) <= until_ms:
                low_ms = middle_ms
            else:
                high_ms = middle_ms
        return int(self.after(low_ms, now_ms))

    def _ask(self, last_ms: int, now_ms: int) -> Verdict:
        """Let a schedule speak that decides for itself; it knows no due times, so the run is due now."""
        with self._at(now_ms):
            due, again_s = self._schedule.is_due(self._moment(last_ms))
        return Verdict("run", now_ms) if due else Verdict("wait", now_ms + max(again_s or 0, 0.001) * 1000)

    def _estimate(self, last_ms: float, now_ms: int) -> float:
        with self._at(now_ms):
            remaining: timedelta = self._schedule.remaining_estimate(self._moment(last_ms))
        # Up to the next millisecond: a last run just before its own due time would be due again.
        return now_ms + math.ceil(remaining / _MILLISECOND)

    def _starting_deadline_ms(self) -> int | None:
        """Return how late Celery's configuration lets a crontab's run start."""
        if not isinstance(self._schedule, schedules.crontab):
            return None
        deadline_s = self._schedule.app.conf.get("beat_cron_starting_deadline")
        return None if deadline_s is None else round(deadline_s * 1000)

    @contextmanager
    def _at(self, now_ms: int) -> Iterator[None]:
        """Make it *now_ms* for the schedule."""
        now, own = self._moment(now_ms).astimezone(self._told_in), _clock_of(self._schedule)
        self._schedule.nowfun = lambda: now
        try:
            yield
        finally:
            self._schedule.nowfun = own

    def _moment(self, at_ms: float) -> datetime:
        return (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(self._zone)


_CRON_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")


def _interval_of(schedule: Any) -> timedelta | None:
    """Return how long after a run the next is due, where nothing else counts."""
    plain = all(_is_celerys(schedule, method) for method in ("is_due", "remaining_estimate"))
    if not plain or getattr(schedule, "relative", True):  # only an interval has that
        return None
    every: timedelta = schedule.run_every
    return max(every, _MILLISECOND)


def _is_celerys(schedule: Any, method: str) -> bool:
    """Whether a method of its class is one that Celery brought along, or django-celery-beat."""
    module: str = getattr(getattr(type(schedule), method, None), "__module__", "")
    return module.startswith(("celery.", "django_celery_beat."))


def _zone_of(schedule: Any) -> tzinfo:
    """Return the time zone in which its fields are meant: its clock's, if it has one of its own."""
    clock = _clock_of(schedule)
    own: tzinfo | None = clock().tzinfo if clock else None
    theirs: tzinfo = getattr(schedule, "tz", timezone.utc)
    return own or theirs


def _clock_of(schedule: Any) -> Callable[[], datetime] | None:
    clock: Callable[[], datetime] | None = getattr(schedule, "nowfun", None)
    return clock


def _cron_text(field: Any) -> str:
    return str(field) if isinstance(field, str | int) else ",".join(map(str, sorted(field)))


def _name(schedule: Any) -> str:
    cls = type(schedule)
    return f"{cls.__module__}.{cls.__qualname__}"
