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
_MOST_AT_ONCE = 100
_LOOK_AGAIN_MS = 60_000
_KEY_AGAIN_MS = 5_000
"""When a run is tried again under whose key somebody else is about to publish."""


@dataclass(slots=True)
class _Line:
    """An entry, where it stands, and when to look at it next."""

    entry: Entry
    progress: Progress
    shown: int
    """Of how many runs its source has heard."""
    look_ms: float = 0


@dataclass(frozen=True, slots=True)
class _Move:
    """A line goes on: with a run, or past runs that nobody was there for."""

    line: _Line
    after: Progress

    @property
    def is_run(self) -> bool:
        """Whether a message is to be published."""
        return self.after.total_runs > self.line.progress.total_runs


class _Blocked(Exception):
    """A run that cannot be published as long as somebody else's transaction is open."""

    def __init__(self, move: _Move) -> None:
        super().__init__(move.line.entry.name)
        self.move = move


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
        due = sorted((line for line in lines if line.look_ms <= self._now_ms), key=lambda line: line.look_ms)
        moves = [move for line in due if (move := self._plan(line)) is not None]
        for start in range(0, len(moves), _MOST_AT_ONCE):
            if self._term.seconds_until_next() > 0:
                self._make(moves[start : start + _MOST_AT_ONCE])
        next_ms = min((line.look_ms for line in lines), default=math.inf)
        return max(0.0, min((next_ms - self._now_ms) / 1000, self._term.seconds_until_next()))

    def forget(self) -> None:
        """Forget what was read of the database: whether it is still so is unknown."""
        self._lines = None

    def close(self) -> None:
        """Let another beat lead, and the source know what was run: a signal may have come in between."""
        if self._lines is not None:
            with self._in_time():
                known = self._store.schedules.load(self._beat)
            for line in self._lines:
                line.progress = known.get(line.entry.name, line.progress)
            self._show(self._lines)
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
        self._show(lines)  # another beat may have died before it could
        return lines

    def _plan(self, line: _Line) -> _Move | None:
        """Say what is to be done about a line now; None: nothing."""
        entry, stands = line.entry, line.progress
        if self._now_ms >= entry.ends_ms or (entry.once and stands.total_runs):
            line.look_ms = self._now_ms + _LOOK_AGAIN_MS
            self._source.retire(entry)
            return None
        if self._now_ms < entry.starts_ms:
            line.look_ms = entry.starts_ms
            return None
        verdict = self._judge(line)
        line.look_ms = verdict.at_ms
        if verdict.do == "wait":
            return None
        runs = 1 if verdict.do == "run" else 0
        return _Move(line, replace(stands, last_run_ms=int(verdict.at_ms), total_runs=stands.total_runs + runs))

    def _show(self, lines: list[_Line]) -> None:
        """Let the source hear of runs that it has not heard of."""
        for line in lines:
            if line.progress.total_runs > line.shown:
                self._source.ran(line.entry, line.progress)
                line.shown = line.progress.total_runs

    def _judge(self, line: _Line) -> Verdict:
        try:
            return line.entry.timetable.judge(line.progress.last_run_ms, self._now_ms, self._missed, self._late_ms)
        except Exception:
            logger.exception("when %r is due cannot be told; it is asked again in a minute", line.entry.name)
            return Verdict("wait", self._now_ms + _LOOK_AGAIN_MS)

    def _make(self, moves: list[_Move]) -> None:
        """Make moves together; each alone if one of them cannot be published."""
        try:
            self._commit(moves, publish=True)
        except _Blocked as blocked:
            self._put_off(blocked)
            others = [move for move in moves if move is not blocked.move]
            if others and self._term.seconds_until_next() > 0:
                self._make(others)
        except Exception as error:
            if cause := _of_the_store(error):
                raise cause from error
            if len(moves) > 1:
                for move in moves:
                    self._make([move])
                return
            # Noted as if it had been published, as Celery does: it would stand in the way for ever.
            logger.exception("the periodic task %r could not be published", moves[0].line.entry.name)
            self._commit(moves, publish=False)

    def _commit(self, moves: list[_Move], *, publish: bool) -> None:
        with self._in_time(), self._store.transaction("tick"):
            self._term.hold(f"running {moves[0].line.entry.name!r}")
            pairs = [(move.line.progress, move.after) for move in moves]
            if self._store.schedules.advance(self._beat, pairs) != len(moves):
                raise errors.StoreBusy(f"the schedule {self._beat!r} was changed by another program")
            runs = [move for move in moves if publish and move.is_run]
            if runs:
                self._store.limits.hurry()
            for move in runs:
                self._run(move)
        for move in moves:
            move.line.progress = move.after
        self._show([move.line for move in moves])

    def _run(self, move: _Move) -> None:
        try:
            self._publish(move.line.entry, move.after.last_run_ms, self._task_id(move.after))
        except Exception as error:
            if isinstance(_of_the_store(error), errors.StoreBusy):
                raise _Blocked(move) from error
            raise

    def _put_off(self, blocked: _Blocked) -> None:
        """Leave a run for later: no other entry waits for it."""
        line = blocked.move.line
        line.look_ms = self._now_ms + _KEY_AGAIN_MS
        logger.warning(
            "the periodic task %r waits for a transaction that is open: %s", line.entry.name, blocked.__cause__
        )

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
