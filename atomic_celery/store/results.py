"""What tasks came to, who waits for it, and chords: counted in SQL, finished once.

What a holder leaves behind is written in the transaction that settles its claim, after the settle found the fence; only
`record_held` looks for a fence by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from atomic_celery.store.database import Noun
from atomic_celery.store.records import Held, NewMessage

SUCCESS = "SUCCESS"
LARGE = 256 * 1024
"""From how many characters on an outcome is recorded by itself: JSON within JSON is slow."""
LAST_PLACE = float(2**53)
"""Where a chord's part stands that does not know its place."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task came to."""

    task_id: str
    status: str
    meta: str
    """Celery's record of it, as text."""
    keep_ms: int | None = None
    """How long it is kept; None: until it is forgotten."""


@dataclass(frozen=True, slots=True)
class Finisher:
    """The message that is published once when a chord is full."""

    queue: str
    """The queue's name, should it have been deleted and made anew since."""
    message: NewMessage


@dataclass(frozen=True, slots=True)
class ChordTerms:
    """What is said about a chord: what is None or 0 leaves what was said before."""

    group_id: str
    size: int | None = None
    more: int = 0
    """How many parts were added to those of its header."""
    finisher: Finisher | None = None
    finished_by_hand: bool = False
    """Whether whoever counts its last part finishes it, instead of a message."""
    keep_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ChordPart:
    """One part of a chord that ended."""

    group_id: str
    part: str
    """Its task id. At its place, a part that ends twice counts once."""
    place: float
    """Where in the header it stands."""
    status: str
    result: str
    keep_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ChordClosed:
    """A chord whose end has been dealt with."""

    group_id: str


@dataclass(frozen=True, slots=True)
class FullChord:
    """A chord whose last part was counted just now."""

    group_id: str
    finisher: Finisher | None
    """What has to be published in the same transaction; None: it is finished by hand."""


class Results(Noun):
    """The verbs of a result's life."""

    noun = "results"

    def record(self, outcomes: Iterable[Outcome]) -> None:
        """Record what tasks came to and wake who waits for it; one that succeeded stays as it is.

        Atomicity: one statement, and one more for each that is large; joins the caller's transaction, and wakes when
            that is committed.
        """
        latest: dict[str, Outcome] = {}
        for outcome in outcomes:
            if (before := latest.get(outcome.task_id)) is None or before.status != SUCCESS:
                latest[outcome.task_id] = outcome
        if small := [_columns(outcome) for outcome in latest.values() if len(outcome.meta) < LARGE]:
            self._exec("record", outcomes=small, unbegun=False)
        for outcome in latest.values():
            if len(outcome.meta) >= LARGE:
                self._exec("record_large", **_columns(outcome))

    def record_revoked(self, outcomes: Sequence[Outcome]) -> None:
        """Record these as what will never be, and wake who waits; what has begun or ended stays as it is.

        Atomicity: one statement, as `record`.
        """
        self._exec("record", outcomes=[_columns(outcome) for outcome in outcomes], unbegun=True)

    def record_held(self, outcome: Outcome, held: Held) -> bool:
        """Record how far a task has come, as the holder of its message; False: it is not ours, nothing was recorded.

        Atomicity: one statement; joins the caller's transaction.
        """
        return self._one("record_held", id=held[0], fence=held[1], **_columns(outcome)) is not None

    def get(self, task_ids: Sequence[str], *, final: bool = False) -> dict[str, tuple[str, str]]:
        """Return status and meta of each task of which something is known; with *final* only of those that ended."""
        rows = self._many("get_many", task_ids=list(task_ids), final=final)
        return {task_id: (status, meta) for task_id, status, meta in rows}

    def watch(self, listener: str, task_ids: Sequence[str], for_ms: int) -> None:
        """Let *listener*'s doorbell ring when one of these comes to something, where it can be rung at all.

        Atomicity: one statement. A result whose transaction had begun before may still come in silence.
        """
        if self._database.can_wake and task_ids:
            self._exec("watch", listener=listener, task_ids=list(task_ids), for_ms=for_ms)

    def unwatch(self, listener: str, task_ids: Sequence[str]) -> None:
        """Wait for these no more."""
        if self._database.can_wake and task_ids:
            self._exec("unwatch", listener=listener, task_ids=list(task_ids))

    def forget(self, task_id: str) -> None:
        """Remove what a task came to."""
        self._exec("forget", task_id=task_id)

    def save_group(self, group_id: str, result: str, keep_ms: int | None) -> None:
        """Keep a group's result."""
        with self._joining():
            self._exec("save_group", group_id=group_id, result=result, keep_ms=keep_ms)

    def get_group(self, group_id: str) -> str | None:
        """Return a group's result."""
        row = self._one("get_group", group_id=group_id)
        return None if row is None else str(row[0])

    def forget_group(self, group_id: str) -> None:
        """Remove a group's result."""
        self._exec("forget_group", group_id=group_id)

    def describe_chord(self, terms: ChordTerms) -> FullChord | None:
        """Say how many parts a chord has, that there are more, or what finishes it; nothing if it is full already.

        Atomicity: one statement; joins the caller's transaction, and that of a guest.

        Returns:
            The chord, if this made it full: its finisher is to be published in the same transaction.
        """
        finisher = "" if terms.finished_by_hand else _text(terms.finisher)
        with self._joining():
            row = self._one(
                "describe_chord",
                group_id=terms.group_id,
                size=terms.size,
                more=terms.more,
                finisher=finisher,
                keep_ms=terms.keep_ms,
            )
        return FullChord(terms.group_id, _finisher(row[1])) if row is not None and row[0] else None

    def count(self, parts: Sequence[ChordPart]) -> list[FullChord]:
        """Count parts that ended, each once.

        Atomicity: one statement; joins the caller's transaction.

        Returns:
            The chords that this made full: their finishers are to be published in the same transaction.
        """
        rows = self._many("count_parts", parts=[_columns(part) for part in parts])
        return [FullChord(group_id, _finisher(text)) for group_id, text in rows]

    def parts(self, group_id: str) -> list[tuple[str, str, str]]:
        """Return the parts of a full chord in the order of its header; none once it is closed.

        Returns:
            Task id, status and result of each.
        """
        return [(part, status, result) for part, status, result in self._many("chord_parts", group_id=group_id)]

    def close_chords(self, group_ids: Sequence[str]) -> None:
        """Remove chords and their parts.

        Atomicity: one statement; joins the caller's transaction.
        """
        self._exec("close_chords", group_ids=list(group_ids))

    def expire(self, limit: int = 1000) -> int:
        """Remove what was to be kept until now; return how many results, at most *limit*.

        Atomicity: one statement.
        """
        row = self._one("expire", limit=limit)
        return int(row[0]) if row is not None else 0


def _text(finisher: Finisher | None) -> str | None:
    return None if finisher is None else json.dumps(asdict(finisher))


def _finisher(text: str) -> Finisher | None:
    if not text:
        return None
    said = json.loads(text)
    return Finisher(said["queue"], NewMessage(**said["message"]))


def _columns(row: Outcome | ChordPart) -> dict[str, Any]:
    """Return the fields of *row*; `dataclasses.asdict` takes twenty times as long, for each task that ends."""
    return {name: getattr(row, name) for name in row.__slots__}
