"""Messages: published, claimed, renewed, settled, reclaimed. The fence is in every verb.

Looking at messages, without changing them, is in `reads`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from atomic_celery import errors
from atomic_celery.store.connection import Row
from atomic_celery.store.database import Database, Noun
from atomic_celery.store.guests import Guest
from atomic_celery.store.limits import Limits
from atomic_celery.store.receipts import Receipt, Receipts
from atomic_celery.store.records import (
    Claimed,
    Crashed,
    Held,
    Holder,
    Lane,
    NewMessage,
    Renewal,
    Settlement,
    Turn,
    Untold,
    claimed_of,
)
from atomic_celery.store.roots import Roots

Ring = Callable[[Sequence[int], int], object]
"""Wake up to so many sleepers of each of these queues."""

CROWD = 500
"""After so many children of one root, those that the same process publishes go ahead of nobody: they take turns."""

_MOST_ROOTS = 10_000

_WAKE_WITHIN_S = 2.0  # an application that has just committed should not wait for long
_NOBODY = Holder("", "")
_NO_RECEIPT = None, None, None
_AT_ONCE = ("queue_id", "payload", "task_id", "task_name", "root_id", "priority", "expires_ms", "again")
_FIELDS = (*_AT_ONCE, "due_ms", "unique_key", "unique_until")


class Messages(Noun):
    """The verbs of one message's life."""

    noun = "messages"

    def __init__(self, database: Database, ring: Ring, limits: Limits, roots: Roots) -> None:
        super().__init__(database)
        self._ring, self._limits, self._roots = ring, limits, roots
        self._receipts = Receipts()
        self._children: dict[str, int] = {}
        self._max_crashes = database.settings.max_crashes

    def publish(self, new: Sequence[NewMessage]) -> list[int | None]:
        """Store messages and wake sleepers for them.

        Atomicity: one statement; joins the caller's transaction, and that of a guest. Sleepers are woken when it is
            committed.

        Returns:
            The id of each, in order; None where that task id is unfinished in that queue already, or its key is taken.

        Raises:
            QueueNotFound: A queue is gone. Nothing was stored.
        """
        # Broadcasts, events and replies are no part of anybody's transaction: who waits for an answer needs them out.
        limit_ids = self._limits.resolve(message.limit for message in new if message.limit is not None)
        self._open_crowded_roots(new)
        guest = self._database.guest()
        if guest is None or not (guest.is_sole or all(message.task_name for message in new)):
            return self._publish(new, limit_ids, wake=True)
        later = guest.tells_commits and self._database.can_wake
        with self._database.hosting(guest):
            ids = self._publish(new, limit_ids, wake=not later, guest=guest)
        if later:
            guest.wake_after_commit(self._wake_soon, [message.queue_id for message in new if message.due_ms is None])
        return ids

    def supersede(self, held: Held, new: NewMessage) -> int:
        """Publish the continuation of a held message, which ends when that one settles.

        Atomicity: one transaction; joins the caller's. A second call finds the first one's message.

        Raises:
            LeaseLost: The message is not ours any more. Nothing was stored.
        """
        message_id, fence = held
        with self._database.transaction("supersede"):
            row = self._one("unname", id=message_id, fence=fence)
            if row is None:
                raise errors.LeaseLost(message_id, fence, doing="superseding it")
            successor_id = row[0] if row[0] is not None else self._publish_successor(replace(new, again=True))
            if not self._exec("succeed", id=message_id, fence=fence, successor_id=successor_id):
                raise errors.LeaseLost(message_id, fence, doing="superseding it")
        return int(successor_id)

    def claim(self, holder: Holder, lanes: Sequence[Lane], limit: int, lease_ms: int) -> list[Claimed]:
        """Claim up to *limit* ready messages, lane by lane; none for a draining host.

        Atomicity: one statement. A claim that finds nothing writes nothing.
        """
        return self.turn(holder, Settlement(), lanes, limit, lease_ms).claimed

    def take(self, queue_ids: Sequence[int], limit: int) -> list[Claimed]:
        """Remove up to *limit* messages and return them, 9 first: for consumers without acknowledgement.

        Atomicity: one statement. If its answer is lost, so are the messages.
        """
        return sorted(map(claimed_of, self._many("take", queue_ids=queue_ids, limit=limit)), key=_line)

    def renew(self, holder: Holder, held: Iterable[Held], lease_ms: int) -> Renewal:
        """Push the leases that still hold out to *lease_ms* from now, each judged by itself.

        Atomicity: one statement.
        """
        rows = self._many("renew", holder=holder.id, boot=holder.boot, held=sorted(held), lease_ms=lease_ms)
        by_outcome: dict[str, list[int]] = {"renewed": [], "unconfirmed": [], "lost": []}
        for message_id, outcome in rows:
            by_outcome[outcome].append(message_id)
        return Renewal(**{outcome: frozenset(ids) for outcome, ids in by_outcome.items()})

    def complete(self, held: Iterable[Held]) -> frozenset[int]:
        """Remove finished messages; return the ids of those that were ours.

        Atomicity: one statement; joins the caller's transaction.
        """
        return self.turn(_NOBODY, Settlement(completed=list(held)), (), 0, 0).settled

    def release(self, held: Iterable[Held]) -> frozenset[int]:
        """Give messages back, ready at once and first in line; return the ids of those that were ours.

        Atomicity: one statement; joins the caller's transaction.
        """
        rows = self._many("release", held=sorted(held))
        self._wake(queue_id for _, queue_id in rows)
        return frozenset(message_id for message_id, _ in rows)

    def delay(self, held: Held, due_ms: int) -> bool:
        """Let a held message wait until *due_ms*; False: it was not ours any more.

        Atomicity: one statement; joins the caller's transaction.
        """
        return bool(self._many("delay", id=held[0], fence=held[1], due_ms=due_ms))

    def crash(self, held: Iterable[Held], reason: str) -> list[Crashed]:
        """Report that processes died with these messages: ready again, or buried after too many.

        Atomicity: one statement; joins the caller's transaction.

        Returns:
            Those that were ours, in no order; one that had a successor is gone without a word.
        """
        return self._crash(held, reason, lease="live")

    def turn(
        self,
        holder: Holder,
        settlement: Settlement,
        lanes: Sequence[Lane],
        limit: int,
        lease_ms: int,
    ) -> Turn:
        """Settle what ended and claim what may start.

        Atomicity: one transaction, in the usual case one statement; joins the caller's.
        """
        if not settlement.released and not settlement.crashed and not settlement.buried:
            return self._turn(holder, settlement.completed, lanes, limit, lease_ms)
        with self._database.transaction("turn"):
            settled = self.release(settlement.released) if settlement.released else frozenset()
            crashed = [
                report for held, reason in settlement.crashed for report in self._crash([held], reason, lease="live")
            ]
            crashed += [
                report
                for held, reason in settlement.buried
                for report in self._crash([held], reason, lease="live", max_crashes=1)
            ]
            rest = self._turn(holder, settlement.completed, lanes, limit, lease_ms)
        settled |= {report.id for report in crashed}
        return Turn(settled | rest.settled, crashed, rest.claimed, rest.gated)

    def reclaim(self, limit: int = 1000) -> list[Crashed]:
        """Make messages of leases that ran out ready again, or bury them after too many crashes.

        Atomicity: each message by itself. At most once a second in the whole fleet does anything.
        """
        lapsed = self._many("lapsed", limit=limit)
        return self._crash(map(_held, lapsed), "lease ran out", lease="lapsed") if lapsed else []

    def release_holder(self, holder_id: str, boot: str, reason: str) -> list[Crashed]:
        """Make ready again what a holder held that is proven dead; counted as crashes.

        Atomicity: each message by itself.
        """
        held = self._many("held_by", holder=holder_id, boot=boot)
        return self._crash(map(_held, held), reason, lease="any") if held else []

    def promote(self, limit: int = 1000) -> tuple[int, int | None]:
        """Make up to *limit* delayed messages that are due ready.

        Atomicity: one statement.

        Returns:
            How many, and the milliseconds until the next one is due (0: more are due now; None: none waits).
        """
        *moved, (_, _, next_ms) = self._many("promote", limit=limit)
        for queue_id, count, _ in moved:
            self._ring([queue_id], count)
        total = sum(count for _, count, _ in moved)
        return total, 0 if total == limit else next_ms

    def hasten(self, ids: Sequence[int]) -> set[int]:
        """Let delayed messages be due now; return the ids of those that were delayed.

        Atomicity: one transaction; joins the caller's.
        """
        with self._database.transaction("hasten"):
            hastened = {row[0] for row in self._many("hasten", ids=ids)}
            if hastened:
                self.promote()
        return hastened

    def bury(self, ids: Sequence[int], reason: str) -> set[int]:
        """Put messages aside, whoever holds them; return the ids of those that were not dead already.

        Atomicity: one statement; joins the caller's transaction.
        """
        return {row[0] for row in self._many("bury", ids=ids, reason=reason)}

    def untold(self) -> Untold | None:
        """Return a message that was buried for its crashes while nobody could store its task's failure.

        Atomicity: one statement; nobody else is told of it before the end of the caller's transaction.
        """
        row = self._one("untold")
        return None if row is None else Untold(*row)

    def tell(self, buried: Held) -> None:
        """Note that the failure of a buried message's task is stored.

        Atomicity: one statement; for the transaction that stores it.
        """
        self._exec("tell", id=buried[0], fence=buried[1])

    def requeue(self, ids: Sequence[int]) -> set[int]:
        """Make messages ready, whatever keeps them; return the ids of those that were not ready already.

        Atomicity: one statement; joins the caller's transaction.
        """
        rows = self._many("requeue", ids=ids)
        self._wake(queue_id for _, queue_id in rows)
        return {message_id for message_id, _ in rows}

    def forget_publishers(self, age_ms: int) -> int:
        """Drop the receipts of those who have published nothing for *age_ms*; return how many.

        Atomicity: one statement.
        """
        return self._exec("forget_publishers", age_ms=age_ms)

    def delete(self, ids: Sequence[int]) -> set[int]:
        """Remove messages for good, whatever their state; return the ids of those that there were.

        Atomicity: one statement; joins the caller's transaction.
        """
        return {row[0] for row in self._many("delete", ids=ids)}

    def _open_crowded_roots(self, new: Sequence[NewMessage]) -> None:
        """Let the children of a root of which this process publishes a great many wait at its gate, and take turns."""
        counts, crowded = self._children, set()  # without a lock: nothing depends on a few more or less
        for root_id in (message.root_id for message in new if message.root_id not in (None, message.task_id)):
            if root_id is not None:
                counts[root_id] = counts.get(root_id, 0) + 1
                if counts[root_id] >= CROWD:
                    crowded.add(root_id)
        for root_id in crowded:
            with self._database.apart():
                self._roots.open(root_id)
            counts[root_id] = 0  # and open it again after as many: meanwhile it may have been forgotten
        if len(counts) > _MOST_ROOTS:
            self._children = {}

    def _publish(
        self, new: Sequence[NewMessage], limit_ids: Mapping[str, int], *, wake: bool, guest: Guest | None = None
    ) -> list[int | None]:
        """Publish; where that commits at once, never twice what got no answer before."""
        task_ids = [message.task_id for message in new]
        if not new or None in task_ids or not self._database.commits_at_once(guest):
            return self._stored(new, self._insert(new, limit_ids, _NO_RECEIPT, wake=wake))
        while True:
            with self._receipts.signing(task_ids) as receipt:
                rows = self._insert(new, limit_ids, receipt, wake=wake)
            if rows[0][-1] or receipt.is_second_try:
                self._receipts.give_back(receipt)
                return self._stored(new, rows)
            # Somebody else has written to that row: another copy of this process, thawed from one image. Not again.

    def _insert(
        self,
        new: Sequence[NewMessage],
        limit_ids: Mapping[str, int],
        receipt: Receipt | tuple[None, None, None],
        *,
        wake: bool,
    ) -> list[Row]:
        publisher, fence, below = receipt
        signed = {"publisher": publisher, "fence": fence, "below": below, "wake": wake}
        if len(new) == 1 and not (new[0].due_ms or new[0].limit or new[0].unique_key):
            return self._many("publish", **signed, **_values(new[0], _AT_ONCE))
        messages = [
            {**_values(item, _FIELDS), "limit_id": limit_ids[item.limit.name] if item.limit else None} for item in new
        ]
        return self._many("publish_many", **signed, messages=messages)

    def _turn(
        self, holder: Holder, completed: Sequence[Held], lanes: Sequence[Lane], limit: int, lease_ms: int
    ) -> Turn:
        rows = self._many(
            "turn",
            completed=sorted(completed),
            lanes=[(lane.queue_id, lane.priority, lane.after) for lane in lanes],
            limit=limit,
            holder=holder.id,
            boot=holder.boot,
            is_host=holder.is_host,
            lease_ms=lease_ms,
        )
        order = {(lane.queue_id, lane.priority): place for place, lane in enumerate(lanes)}
        gated = bool(rows) and rows[-1][0] is None
        claimed = [claimed_of(row) for row in rows if row[1] is not None]
        claimed.sort(key=lambda message: (order[message.queue_id, message.priority], message.position))
        settled = frozenset(row[0] for row in rows if row[0] is not None and row[1] is None)
        return Turn(settled, [], claimed, gated)

    def _crash(
        self,
        held: Iterable[Held],
        reason: str,
        *,
        lease: Literal["live", "lapsed", "any"],
        max_crashes: int | None = None,
    ) -> list[Crashed]:
        most = self._max_crashes if max_crashes is None else max_crashes
        rows = self._many("crash", held=sorted(held), reason=reason, lease=lease, max_crashes=most)
        self._wake(row[-1] for row in rows if not row[3])
        return [_crashed(row) for row in rows]

    def _publish_successor(self, new: NewMessage) -> int:
        [successor_id] = self.publish([new])
        if successor_id is not None:
            return successor_id
        row = self._one("unfinished", task_id=new.task_id, queue_id=new.queue_id)
        if row is None:
            raise errors.StoreBusy(f"the other message of task {new.task_id} ended just now")
        return int(row[0])

    def _wake_soon(self, queue_ids: Iterable[int]) -> None:
        with self._database.deadline(_WAKE_WITHIN_S):
            self._wake(queue_ids)

    def _wake(self, queue_ids: Iterable[int]) -> None:
        for queue_id, count in Counter(queue_ids).items():
            self._ring([queue_id], count)

    @staticmethod
    def _stored(new: Sequence[NewMessage], rows: Sequence[Row]) -> list[int | None]:
        for message, row in zip(new, rows, strict=True):
            if not row[1]:
                raise errors.QueueNotFound(
                    str(message.queue_id), f"queue {message.queue_id} was deleted; declare it again"
                )
        return [row[0] for row in rows]


def _values(message: NewMessage, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(message, name) for name in names}


def _held(row: Row) -> Held:
    return row[0], row[1]


def _crashed(row: Row) -> Crashed:
    message_id, fence, crashes, buried, task_id, task_name, holder, root_id, _ = row
    return Crashed(message_id, fence, crashes, bool(buried), task_id, task_name, holder, root_id)


def _line(message: Claimed) -> tuple[int, int]:
    return -message.priority, message.position
