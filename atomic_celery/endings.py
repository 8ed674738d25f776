"""How claims end: collected from any thread, settled in one transaction, kept while the database is away."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from atomic_celery import errors
from atomic_celery.clock import Moment
from atomic_celery.lease import Lease, LeaseKeeper
from atomic_celery.outbox import Entry, has_keys
from atomic_celery.store.records import Held, Limit, Settlement, Turn

logger = logging.getLogger(__name__)

Outcome = Literal["complete", "release", "crash", "bury", "delay", "gate"]

LONG_AGO = Moment(float("-inf"), float("-inf"))
MOST_AT_ONCE = 1000
MOST_BYTES_AT_ONCE = 16 * 1024 * 1024
AGAIN_AFTER_S = 2.0
"""When an end is tried again that waits for a key."""

BYTES_A_SECOND = 2 * 1024 * 1024
"""What even a slow database stores."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What is to become of one claim."""

    held: Held
    outcome: Outcome
    reason: str = ""
    due_ms: int | None = None
    limit: Limit | None = None
    """At whose gate it is to wait."""
    outbox: Callable[[], Sequence[Entry]] | None = None
    """What is done in the same transaction, if the claim still was ours."""
    weight: int = 0
    """About how many bytes that is."""
    burial: Sequence[Entry] | None = None
    """What is done in the same transaction if this crash was one too many, and the message is buried: its task's
    failure. None: that cannot be done here."""
    then: Callable[[bool], None] | None = None
    """Told, on the settling thread, whether the claim still was ours; after the commit."""


class Endings:
    """The endings that wait to be settled. None is dropped before the database has given its verdict on it."""

    def __init__(self, keeper: LeaseKeeper) -> None:
        self._keeper = keeper
        self._waiting: list[Ending] = []
        self._unsure: dict[Held, Moment] = {}
        self._suspect: set[Held] = set()
        self._put_off: list[tuple[float, Ending]] = []
        self._most_at_once = MOST_AT_ONCE
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def patience_s(self) -> float:
        """How much longer than others what waits may take to be settled, because it is large."""
        with self._lock:
            return sum(ending.weight for ending in self._waiting[: self._fitting()]) / BYTES_A_SECOND

    def add(self, ending: Ending) -> None:
        """Let *ending* be settled soon. Safe from any thread."""
        with self._lock:
            self._waiting.append(ending)

    @property
    def due_s(self) -> float:
        """When `recall` will have something."""
        return min((at_s for at_s, _ in self._put_off), default=math.inf)

    def recall(self, now_s: float) -> None:
        """Let those that were put off be settled, as far as it is time. On the settling thread."""
        due = [ending for at_s, ending in self._put_off if at_s <= now_s]
        self._put_off = [each for each in self._put_off if each[0] > now_s]
        with self._lock:
            self._waiting += due

    def put_off(self, attempt: Attempt, now_s: float) -> bool:
        """Take back what was not settled because somebody held a lock; those that publish under a key wait a while.

        Returns:
            Whether there are such; else nothing was taken back.
        """
        keyed = [ending for ending in attempt.endings if ending.outbox is not None and has_keys(ending.outbox())]
        if not keyed:
            return False
        self._keeper.hold(attempt.leases)
        aside = {ending.held for ending in keyed}
        self._suspect |= aside
        self._put_off += [(now_s + AGAIN_AFTER_S, ending) for ending in keyed]
        with self._lock:
            self._waiting = [*(ending for ending in attempt.endings if ending.held not in aside), *self._waiting]
        return True

    def begin(self) -> Attempt:
        """Take what waits, as much as one transaction should settle, and renew it no more."""
        with self._lock:
            count = self._fitting()
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
        ids = [ending.held[0] for ending in taken]
        leases = [lease for lease in map(self._keeper.find, ids) if lease is not None]
        self._keeper.let_go(ids)
        return Attempt(taken, leases)

    def _fitting(self) -> int:
        """Return how many of those that wait are settled together; one that may be to blame for a failure is alone."""
        weight = 0
        for count, ending in enumerate(self._waiting[: self._most_at_once]):
            weight += ending.weight
            if count and (weight > MOST_BYTES_AT_ONCE or ending.held in self._suspect):
                return count
            if ending.held in self._suspect:
                return 1
        return min(len(self._waiting), self._most_at_once)

    def refused(self, attempt: Attempt, error: errors.StoreRefused) -> bool:
        """Take back what was not settled because the database will not have one of it; find that one, and bury it.

        Returns:
            Whether there is reason to try again at once.
        """
        self._keeper.hold(attempt.leases)
        endings = attempt.endings
        alone = len(endings) == 1
        if alone:
            endings = [_without_what_is_refused(endings[0], error)]
        with self._lock:
            self._most_at_once = max(1, len(endings) // 2)
            self._waiting = [*endings, *self._waiting]
        return not alone or endings[0].outcome != attempt.endings[0].outcome

    def failed(self, attempt: Attempt, error: BaseException) -> None:
        """Take back what was not settled, or perhaps was: go on renewing it, and try it again.

        What the database will not have, however often it is tried, is settled as a crash: without what it leaves.
        """
        self._keeper.hold(attempt.leases)
        trusted = {lease.message_id: lease.trusted_until for lease in attempt.leases}
        for message_id, fence in (ending.held for ending in attempt.endings):
            self._unsure.setdefault((message_id, fence), trusted.get(message_id, LONG_AGO))
        endings = attempt.endings
        if not getattr(error, "transient", False):
            endings = [self._without_what_fails(ending, error) for ending in endings]
            self._suspect.update(ending.held for ending in endings)
        with self._lock:
            self._waiting = [*endings, *self._waiting]

    def _without_what_fails(self, ending: Ending, error: BaseException) -> Ending:
        if ending.held not in self._suspect or ending.outbox is None:
            return ending
        logger.error("The end of message %d cannot be stored, it counts as a crash: %s", ending.held[0], error)
        then = ending.then
        refused = None if then is None else lambda _: then(False)
        return Ending(ending.held, "crash", reason=f"its end cannot be stored: {error}", then=refused)

    def doubtful(self, attempt: Attempt, now: Moment) -> list[int]:
        """Return the messages that an attempt without an answer may have completed, and that nobody else can have."""
        return [
            ending.held[0]
            for ending in attempt.endings
            if ending.outcome == "complete" and not self._unsure.get(ending.held, LONG_AGO).reached(now)
        ]

    def verdict(self, attempt: Attempt, settled: Set[int]) -> list[Ending]:
        """Return the endings that the database refused: their claims were no longer ours."""
        refused = [ending for ending in attempt.endings if ending.held[0] not in settled]
        # What an unanswered attempt had settled after all is refused now, and was not lost.
        certain = [ending for ending in refused if ending.held not in self._unsure]
        self._most_at_once = min(2 * self._most_at_once, MOST_AT_ONCE)
        for message_id, fence in (ending.held for ending in refused if self._is_unknown(ending)):
            logger.warning(
                "No answer came to the completion of message %d (fence %d) while its lease lasted: if it was not "
                "completed, it is no longer ours and runs again",
                message_id,
                fence,
            )
        for ending in attempt.endings:
            self._unsure.pop(ending.held, None)
            self._suspect.discard(ending.held)
            if ending.then is not None:
                ending.then(ending.held[0] in settled)
        return certain

    def _is_unknown(self, ending: Ending) -> bool:
        return ending.outcome == "complete" and ending.held in self._unsure


def _without_what_is_refused(ending: Ending, error: Exception) -> Ending:
    """Return an end that can be stored: its message is put aside, since its task has run and would end so again."""
    logger.error("The end of message %d cannot be stored, it is buried: %s", ending.held[0], error)
    then = ending.then
    told = None if then is None else lambda _: then(False)
    return Ending(ending.held, "bury", reason=f"its end cannot be stored: {error}", then=told)


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
            buried=[(ending.held, ending.reason) for ending in self.endings if ending.outcome == "bury"],
        )

    @property
    def put_off(self) -> list[Ending]:
        """What is to wait, for a later time or at a gate."""
        return [ending for ending in self.endings if ending.outcome in ("delay", "gate")]

    def outbox(self, turn: Turn) -> list[Entry]:
        """Return what the settled ones leave to be done."""
        buried = {crashed.id for crashed in turn.crashed if crashed.buried}
        return [
            entry
            for ending in self.endings
            if ending.held[0] in turn.settled
            for entry in (
                *(ending.outbox() if ending.outbox is not None else ()),
                *((ending.burial or ()) if ending.held[0] in buried else ()),
            )
        ]

    def told(self, turn: Turn) -> list[Held]:
        """Return the buried ones whose failures are in the outbox."""
        buried = {(crashed.id, crashed.fence) for crashed in turn.crashed if crashed.buried}
        return [ending.held for ending in self.endings if ending.burial is not None and ending.held in buried]

    @property
    def is_plain(self) -> bool:
        """Whether one call settles all of it."""
        return not self.put_off and all(ending.outbox is None and ending.burial is None for ending in self.endings)
