"""Running a schedule: of all beats one leads, and each due run is enqueued in one transaction with its record.

The transaction holds the term, so that no other beat can take over in its middle; notes the run where the entry
stood, so that nobody can note it twice; and publishes the message. Either all of that is there afterwards or nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID, uuid5

from atomic_celery import errors
from atomic_celery.beat.entries import Entry, Source
from atomic_celery.beat.timetable import MISSED, Verdict
from atomic_celery.store.schedules import Progress
from atomic_celery.store.store import Store
from atomic_celery.term import Term

logger = logging.getLogger(__name__)

Publish = Callable[[Entry, int, str], None]
"""Publish an entry's message: the entry, the run's due time in milliseconds, and the task id."""

_RUNS = UUID("6a7fcf52-0b0b-5f0e-9d3c-6d0c8e1a4b57")  # only to tell our names from other people's
_LATE_IN_TERMS = 1.5
_LOOK_AGAIN_MS = 60_000


@dataclass(slots=True)
class _Line:
    """An entry, where it stands, and when to look at it next."""

    entry: Entry
    progress: Progress
    shown: int
    """Of how many runs its source has heard."""
    look_ms: float = 0


class Conductor:
    """One beat: leads, or waits to.

    Args:
        beat: The name of the schedule that it shares with other beats.
        source: Where the entries are written down.
        publish: What publishes a run's message, in the transaction that is open.
    """

    def __init__(self, store: Store, term: Term, beat: str, source: Source, publish: Publish) -> None:
        self._store, self._term, self._beat = store, term, beat
        self._source, self._publish = source, publish
        self._missed = cast(MISSED, store.settings.beat_missed)
        self._late_ms = round(store.settings.term_s * _LATE_IN_TERMS * 1000)
        self._lines: list[_Line] | None = None
        self._now_ms = 0

    def turn(self) -> float:
        """Run what is due if this beat leads; return seconds until the next turn.

        Raises:
            StaleTerm: Another beat leads now. `forget`, and go on.
            StoreError: Unknown what happened. `forget`, and go on.
        """
        if not self._term.keep():
            self._lines = None
            return self._term.seconds_until_next()
        lines = self._read_clock_and_lines()
        for line in sorted(lines, key=lambda line: line.look_ms):
            if line.look_ms > self._now_ms or self._term.seconds_until_next() <= 0:
                break
            self._attend(line)
        next_ms = min((line.look_ms for line in lines), default=math.inf)
        return max(0.0, min((next_ms - self._now_ms) / 1000, self._term.seconds_until_next()))

    def forget(self) -> None:
        """Forget what was read of the database: whether it is still so is unknown."""
        self._lines = None

    def close(self) -> None:
        """Let another beat lead, and the source know what was run: a signal may have come in between."""
        if self._lines is not None:
            with self._in_time():
                self._show(self._lines, self._store.schedules.load(self._beat))
        self._source.close()
        self._term.hand_over()

    def _read_clock_and_lines(self) -> list[_Line]:
        with self._in_time():
            before_ms, self._now_ms = self._now_ms, self._store.now_ms()
        if self._source.changed() or self._lines is None:
            self._lines = self._read_lines()
        elif self._now_ms < before_ms:
            for line in self._lines:
                line.look_ms = 0
        return self._lines

    def _read_lines(self) -> list[_Line]:
        entries = {entry.name: entry for entry in self._source.read(self._now_ms)}
        with self._in_time():
            known = self._store.schedules.load(self._beat)
        new = [
            entry.begin(known.get(name))
            for name, entry in entries.items()
            if name not in known or known[name].fingerprint != entry.fingerprint
        ]
        if new or known.keys() - entries.keys():
            with self._in_time(), self._store.transaction("schedule"):
                self._term.hold("changing the schedule")
                self._store.schedules.enter(self._beat, new)
                self._store.schedules.forget_others(self._beat, entries)
        known |= {progress.entry: progress for progress in new}
        lines = [_Line(entry, known[name], entry.runs_before) for name, entry in entries.items()]
        self._show(lines, known)  # another beat may have died before it could
        return lines

    def _attend(self, line: _Line) -> None:
        """Do what the schedule says about one entry."""
        entry, before = line.entry, line.progress
        if self._now_ms >= entry.ends_ms or (entry.once and before.total_runs):
            line.look_ms = math.inf
            self._source.retire(entry)
            return
        verdict = self._judge(line)
        if verdict.do == "wait":
            line.look_ms = verdict.at_ms
            return
        after = replace(before, last_run_ms=int(verdict.at_ms))
        if verdict.do == "run":
            after = replace(after, total_runs=before.total_runs + 1)
            self._run(entry, before, after)
            line.progress = after
            self._show([line], {entry.name: after})
        else:
            self._advance(before, after)
            line.progress = after

    def _show(self, lines: list[_Line], known: dict[str, Progress]) -> None:
        """Let the source hear of runs that it has not heard of."""
        for line in lines:
            progress = known.get(line.entry.name, line.progress)
            if progress.total_runs > line.shown:
                self._source.ran(line.entry, progress)
                line.shown = progress.total_runs

    def _judge(self, line: _Line) -> Verdict:
        try:
            return line.entry.timetable.judge(line.progress.last_run_ms, self._now_ms, self._missed, self._late_ms)
        except Exception:
            logger.exception("when %r is due cannot be told; it is asked again in a minute", line.entry.name)
            return Verdict("wait", self._now_ms + _LOOK_AGAIN_MS)

    def _run(self, entry: Entry, before: Progress, after: Progress) -> None:
        """Enqueue a run; one that cannot be is noted as if it had been, like Celery does."""
        try:
            self._advance(before, after, entry)
        except Exception as error:
            if cause := _of_the_store(error):
                raise cause from error
            logger.exception("the periodic task %r could not be published", entry.name)
            self._advance(before, after)

    def _advance(self, before: Progress, after: Progress, entry: Entry | None = None) -> None:
        with self._in_time(), self._store.transaction("tick"):
            self._term.hold(f"running {before.entry!r}")
            if not self._store.schedules.advance(self._beat, before, after):
                raise errors.StoreBusy(f"the schedule of {before.entry!r} was changed by another program")
            if entry is not None:
                self._publish(entry, after.last_run_ms, self._task_id(after))

    def _in_time(self) -> AbstractContextManager[None]:
        """Wait for an answer no longer than the server works on it: a network may lose the question."""
        return self._store.deadline(self._store.settings.statement_timeout_s)

    def _task_id(self, progress: Progress) -> str:
        """Name a run, the same whoever enqueues it however often."""
        return str(uuid5(_RUNS, f"{self._beat}\n{progress}"))


def _of_the_store(error: BaseException | None) -> errors.AtomicError | None:
    """Return the store's error in an error that Celery and kombu put around it; None when there is none."""
    while error is not None and not isinstance(error, errors.StoreError | errors.LeaseLost):
        error = error.__cause__ or error.__context__
    return error
