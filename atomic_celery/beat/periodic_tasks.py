"""django-celery-beat: the schedule is in its models, and changes at run time.

The configuration's entries are written into the models, as its own scheduler does, so that the admin shows and switches
them. What has been run is decided by our own record; ``last_run_at`` and ``total_run_count`` of the models follow it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib import import_module
from typing import Any

from celery import schedules
from celery.utils.log import get_logger
from celery.utils.time import maybe_make_aware

from atomic_celery import clock, errors
from atomic_celery.beat.entries import Configured, Entry
from atomic_celery.beat.timetable import Timetable
from atomic_celery.store import forking
from atomic_celery.store.schedules import Progress

logger = get_logger(__name__)

_APP = "django_celery_beat"
_ASK_EVERY_S = 1.0
_READ_AGAIN_AFTER_S = 300.0  # rows may be changed without a trace, by `QuerySet.update`
_OPTIONS = {"queue", "exchange", "routing_key", "priority", "headers", "expires"}


def installed() -> bool:
    """Whether this is a Django project with django-celery-beat in it."""
    django = sys.modules.get("django.apps")
    return django is not None and django.apps.ready and django.apps.is_installed(_APP)


class PeriodicTasks:
    """Entries in the tables of django-celery-beat.

    Args:
        configured: The entries of the Celery configuration; written into the models now.

    Raises:
        StoreUnavailable: Django's database could not do it.
    """

    def __init__(self, app: Any, configured: Mapping[str, Any]) -> None:
        self._app = app
        self._models, self._theirs = import_module(f"{_APP}.models"), import_module(f"{_APP}.schedulers")
        self._seen: datetime | None = None
        self._ask_at_s = self._read_at_s = 0.0
        with self._database():
            kept = {name: entry for name, entry in configured.items() if not self._write(name, entry)}
        self._kept = Configured(kept)

    def changed(self) -> bool:
        """Whether somebody changed a periodic task or a schedule; asked at most once a second."""
        now_s = clock.monotonic_s()
        if now_s < self._ask_at_s:
            return False
        self._ask_at_s = now_s + _ASK_EVERY_S
        seen = self._seen
        with self._spared("whether the schedule changed"), self._database():
            seen = self._models.PeriodicTasks.last_change()
        return now_s >= self._read_at_s or seen != self._seen

    def read(self, now_ms: int) -> list[Entry]:
        """Return the enabled tasks, and what cannot be written into the models."""
        with self._database():
            self._seen = self._models.PeriodicTasks.last_change()
            rows = [row for row in self._models.PeriodicTask.objects.enabled() if row.name not in self._kept.entries]
        self._read_at_s = clock.monotonic_s() + _READ_AGAIN_AFTER_S
        found = (self._entry(row, now_ms) for row in rows)
        return [*self._kept.read(now_ms), *(entry for entry in found if entry is not None)]

    def ran(self, entry: Entry, progress: Progress) -> None:
        """Show a run in the admin; what fails here is made up for when the rows are read the next time."""
        if (row := _row(entry)) is None:
            return
        with self._spared(f"the admin about a run of {entry.name!r}"), self._database():
            self._models.PeriodicTask.objects.filter(pk=row.pk).update(
                last_run_at=self._storable(progress.last_run_ms), total_run_count=progress.total_runs
            )

    def retire(self, entry: Entry) -> None:
        """Disable a task that ran once, or has expired; not one that was changed meanwhile."""
        if (row := _row(entry)) is None:
            return
        with self._spared(f"the admin about the end of {entry.name!r}"), self._database():
            self._models.PeriodicTask.objects.filter(pk=row.pk, date_changed=row.date_changed).update(
                enabled=False, last_run_at=None, total_run_count=0 if row.one_off else row.total_run_count
            )
            self._models.PeriodicTasks.update_changed()

    def close(self) -> None:
        """Nothing to let go of: Django closes its own connections."""

    def _write(self, name: str, scheduled: Any) -> bool:
        """Write an entry of the configuration into the models; False: they cannot hold all of it."""
        if not _fits_models(scheduled):
            return False
        options = dict(scheduled.options)
        options["expire_seconds"] = options.pop("expires", None)
        try:
            self._theirs.ModelEntry.from_entry(
                name,
                app=self._app,
                task=scheduled.task,
                schedule=scheduled.schedule,
                args=scheduled.args,
                kwargs=scheduled.kwargs,
                options=options,
            )
        except (TypeError, ValueError):  # arguments that are no JSON
            return False
        return True

    def _entry(self, row: Any, now_ms: int) -> Entry | None:
        last_run_at = row.last_run_at  # ModelEntry makes one up
        try:
            scheduled = self._theirs.ModelEntry(row, app=self._app)
            if not row.enabled:
                return None  # what it could not read it has said, and disabled
            timetable = Timetable(scheduled.schedule)
            return Entry(
                row.name,
                scheduled,
                timetable,
                f"{timetable.fingerprint()}{_told(row)}",
                _begins_ms(row, last_run_at, timetable, now_ms),
                starts_ms=-math.inf if (start_at := _start_at(row)) is None else _milliseconds(start_at),
                ends_ms=math.inf if row.expires is None else _milliseconds(row.expires),
                once=row.one_off,
                runs_before=row.total_run_count,
            )
        except Exception:
            logger.exception("the periodic task %r is left out: its row cannot be read", row.name)
            return None

    def _storable(self, at_ms: int) -> datetime:
        moment = datetime.fromtimestamp(at_ms / 1000, timezone.utc)
        return moment if self._theirs.settings.USE_TZ else moment.replace(tzinfo=None)

    @contextmanager
    def _spared(self, what: str) -> Iterator[None]:
        """Go on with the schedule as it is known when Django's database, which may be another one, is away."""
        try:
            yield
        except errors.StoreUnavailable as error:
            logger.warning("not known yet, %s: %s", what, error)

    @contextmanager
    def _database(self) -> Iterator[None]:
        """Use Django's connection, a new one if the old one broke.

        Raises:
            StoreUnavailable: Django's database could not do it.
        """
        with forking.undisturbed():  # a beat in a worker is a thread of a process that forks
            self._theirs.close_old_connections()
            try:
                yield
            except (self._theirs.DatabaseError, self._theirs.InterfaceError) as error:
                self._theirs.close_old_connections()
                raise errors.StoreUnavailable(f"the database of {_APP}: {error}") from error


def _row(entry: Entry) -> Any:
    return getattr(entry.scheduled, "model", None)


def _start_at(row: Any) -> datetime | None:
    """Return the moment before which a task is not run, if it names one."""
    start_at: datetime | None = row.start_time or (row.clocked.clocked_time if row.clocked else None)
    return start_at


def _begins_ms(row: Any, last_run_at: datetime | None, timetable: Timetable, now_ms: int) -> int:
    """Say from when on the runs of a task are due that we know nothing of yet."""
    changed_ms = now_ms if row.date_changed is None else min(now_ms, _milliseconds(row.date_changed))
    start_at = _start_at(row)
    if start_at is not None and (last_run_at is None or last_run_at < start_at):
        return timetable.owing(_milliseconds(start_at), changed_ms, now_ms)
    return changed_ms if last_run_at is None else _milliseconds(last_run_at)


def _told(row: Any) -> str:
    """Name what the due times depend on beside the schedule; a task that runs once, runs once for each change."""
    start = f" from {row.start_time.isoformat()}" if row.start_time else ""
    once = f" once since {row.date_changed.isoformat()}" if row.one_off else ""
    return start + once


def _milliseconds(moment: datetime) -> int:
    return round(maybe_make_aware(moment).timestamp() * 1000)


def _interval_s(schedule: Any) -> float:
    interval_s: float = schedule.run_every.total_seconds()
    return interval_s


def _fits_models(scheduled: Any) -> bool:
    """Whether the models can hold all of a configured entry."""
    schedule: Any = scheduled.schedule
    if type(schedule) is schedules.schedule:
        fits = not schedule.relative and _interval_s(schedule) % 1 == 0
    else:
        fits = type(schedule) in (schedules.crontab, schedules.solar)
    return fits and schedule.nowfun is None and not set(scheduled.options) - _OPTIONS
