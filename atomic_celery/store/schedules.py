"""Schedules: how far each periodic task has come, written by whoever holds the beat's term."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from atomic_celery.store.database import Noun


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one entry of a schedule has come."""

    entry: str
    fingerprint: str
    """Of the schedule that *last_run_ms* belongs to."""
    last_run_ms: int
    """The due time of the last run, or from when on runs are due."""
    total_runs: int


class Schedules(Noun):
    """The verbs of periodic tasks; those that write are called in a transaction that holds the term."""

    noun = "schedules"

    def load(self, beat: str) -> dict[str, Progress]:
        """Return what is known of a beat's entries, by their names."""
        return {row[0]: Progress(*row) for row in self._many("load", beat=beat)}

    def enter(self, beat: str, entries: Sequence[Progress]) -> None:
        """Let entries begin, or begin anew, where they are said to stand.

        Atomicity: joins the caller's transaction.
        """
        rows = [(each.entry, each.fingerprint, each.last_run_ms, each.total_runs) for each in entries]
        self._exec("enter", beat=beat, entries=rows)

    def forget_others(self, beat: str, entries: Iterable[str]) -> None:
        """Forget the entries that are none of *entries*.

        Atomicity: joins the caller's transaction.
        """
        self._exec("forget_others", beat=beat, entries=sorted(entries))

    def advance(self, beat: str, moves: Sequence[tuple[Progress, Progress]]) -> int:
        """Let entries go on, each from the first to the second; return how many stood at the first.

        Atomicity: one statement; joins the caller's transaction.
        """
        rows = [
            (before.entry, before.last_run_ms, before.total_runs, after.last_run_ms, after.total_runs)
            for before, after in moves
        ]
        return self._exec("advance", beat=beat, moves=rows)
