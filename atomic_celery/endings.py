"""How claims end: collected from any thread, settled in one transaction, kept while the database is away."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from atomic_celery.lease import Lease, LeaseKeeper
from atomic_celery.outbox import Entry
from atomic_celery.store.records import Held, Settlement

logger = logging.getLogger(__name__)

Outcome = Literal["complete", "release", "crash", "delay"]

MOST_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Ending:
    """What is to become of one claim."""

    held: Held
    outcome: Outcome
    reason: str = ""
    due_ms: int | None = None
    outbox: Callable[[], Sequence[Entry]] | None = None
    """What is done in the same transaction, if the claim still was ours."""
    settled: Callable[[], None] | None = None
    """Called once the database has agreed."""
    then: Callable[[bool], None] | None = None
    """Told, on the settling thread, whether the claim still was ours; after the commit."""


class Endings:
    """The endings that wait to be settled. None is dropped before the database has given its verdict on it."""

    def __init__(self, keeper: LeaseKeeper) -> None:
        self._keeper = keeper
        self._waiting: list[Ending] = []
        self._unsure: set[int] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, ending: Ending) -> None:
        """Let *ending* be settled soon. Safe from any thread."""
        with self._lock:
            self._waiting.append(ending)

    def begin(self) -> Attempt:
        """Take what waits, at most `MOST_AT_ONCE`, and renew it no more."""
        with self._lock:
            taken, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
        ids = [ending.held[0] for ending in taken]
        leases = [lease for lease in map(self._keeper.find, ids) if lease is not None]
        self._keeper.let_go(ids)
        return Attempt(taken, leases)

    def failed(self, attempt: Attempt) -> None:
        """Take back what was not settled, or perhaps was: go on renewing it, and try it again."""
        self._keeper.hold(attempt.leases)
        self._unsure.update(ending.held[0] for ending in attempt.endings)
        with self._lock:
            self._waiting = [*attempt.endings, *self._waiting]

    def verdict(self, attempt: Attempt, settled: Set[int]) -> list[Ending]:
        """Return the endings that the database refused: their claims were no longer ours."""
        refused = [ending for ending in attempt.endings if ending.held[0] not in settled]
        certain = [ending for ending in refused if ending.held[0] not in self._unsure]
        # What an unanswered attempt had settled after all is refused now, and was not lost.
        self._unsure.difference_update(ending.held[0] for ending in attempt.endings)
        for ending in attempt.endings:
            if ending.then is not None:
                ending.then(ending.held[0] in settled)
        return certain


@dataclass(frozen=True, slots=True)
class Attempt:
    """Endings on their way to the database, and the leases they have until it answers."""

    endings: list[Ending]
    leases: list[Lease]

    @property
    def settlement(self) -> Settlement:
        """What the store settles in one statement."""
        return Settlement(
            completed=[ending.held for ending in self.endings if ending.outcome == "complete"],
            released=[ending.held for ending in self.endings if ending.outcome == "release"],
            crashed=[(ending.held, ending.reason) for ending in self.endings if ending.outcome == "crash"],
        )

    @property
    def delayed(self) -> list[Ending]:
        """What waits for a later time."""
        return [ending for ending in self.endings if ending.outcome == "delay"]

    def outbox(self, settled: Set[int]) -> list[Entry]:
        """Return what the settled ones leave to be done."""
        return [
            entry
            for ending in self.endings
            if ending.outbox is not None and ending.held[0] in settled
            for entry in ending.outbox()
        ]

    @property
    def is_plain(self) -> bool:
        """Whether one call settles all of it."""
        return all(ending.outbox is None and ending.outcome != "delay" for ending in self.endings)
