"""Queues, exchanges and bindings; and who sleeps until a message arrives."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atomic_celery import errors
from atomic_celery.store.connection import Row
from atomic_celery.store.database import Database, Noun

SIZE_BOUND = 100_000
"""Where `Queues.size` stops counting."""

ABANDONED_MS = 300_000
"""How long an exclusive or self-deleting queue lives without being touched."""

_CHUNK = 10_000  # messages removed by one statement, to stay far below its timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """What a queue is to be like."""

    name: str
    exclusive_to: str | None = None
    """The id of the only holder that may use it."""
    auto_delete: bool = False
    """Whether it goes with its last consumer."""
    expires_ms: int | None = None
    """How long it lives without being used."""
    message_ttl_ms: int | None = None
    max_priority: int | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """All that it was declared with; JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue(QueueSpec):
    """A queue that exists."""

    id: int

    @property
    def perishable(self) -> bool:
        """Whether it goes away unless it is touched while it is used."""
        return self.expires_ms is not None or self.exclusive_to is not None or self.auto_delete


@dataclass(frozen=True, slots=True)
class Binding:
    """A way from an exchange to a queue."""

    exchange: str
    routing_key: str
    pattern: str
    queue: str


_COLUMNS = [item.name for item in dataclasses.fields(Queue)]


class Queues(Noun):
    """The verbs of queues. Each is one statement, or a transaction where it says so."""

    noun = "queues"

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._unused: dict[int, int] = {}  # queue id -> used_ms, as the last `expire` saw it

    def declare(self, spec: QueueSpec) -> Queue:
        """Make sure that a queue exists, and return it as it is.

        The first declaration counts: of one that exists nothing is changed. It costs a read then,
        and a write if the queue is perishable.

        Atomicity: several programs may declare it at once; all get the same queue.

        Raises:
            QueueInUse: It exists and is exclusive to another holder.
        """
        queue = self.get(spec.name)
        if queue is not None and not queue.perishable:
            return queue
        with self._database.apart():
            return self._declare(spec)

    def get(self, name: str) -> Queue | None:
        """Return a queue by its name."""
        rows = self._seen("get", name=name)
        return _queue(rows[0]) if rows else None

    def delete(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue with all its messages, claimed and dead ones too; return how many.

        A queue that does not exist has been deleted already: 0.

        Args:
            name: Its name.
            if_unused: Only without consumers: nobody sleeps over it, holds a message of it, or is
                a live host that reports to consume it.
            if_empty: Only without messages, in whatever state.

        Atomicity: one transaction. A message that is published at the same time may stay behind,
            unseen.

        Raises:
            QueueInUse: It has consumers. Nothing was deleted.
            QueueNotEmpty: It has messages. Nothing was deleted.
        """
        with self._database.transaction("queues.delete"):
            held = self._one("hold", name=name)
            if held is None:
                return 0
            [queue_id] = held
            if if_unused and self._is_consumed(name, queue_id):
                raise errors.QueueInUse(name, f"queue {name!r} has consumers")
            if if_empty and self._says("filled", queue_id=queue_id):
                raise errors.QueueNotEmpty(name, f"queue {name!r} has messages")
            return self._remove([queue_id])

    def purge(self, name: str) -> int:
        """Remove the messages that wait in a queue, ready or delayed; return how many.

        Claimed and dead ones stay, and so does what is published meanwhile.

        Atomicity: a transaction for each of so many messages; an error leaves the rest in place.

        Raises:
            QueueNotFound: There is no such queue.
        """
        queue = self.get(name)
        if queue is None:
            raise errors.QueueNotFound(name, f"there is no queue {name!r}")
        newest = self._number("newest")
        removed, chunk = 0, -1
        while chunk:
            chunk = self._number("purge", queue_id=queue.id, newest=newest, limit=_CHUNK)
            removed += chunk
        return removed

    def size(self, name: str) -> int:
        """Return how many messages are ready in a queue: exact below `SIZE_BOUND`, at most that."""
        with self._database.at_home():
            return self._number("size", name=name, bound=SIZE_BOUND)

    def touch(self, queue_ids: Sequence[int]) -> set[int]:
        """Say that perishable queues are in use; return those that still exist.

        Consumers do so several times within a queue's `expires_ms`, and declare again what is gone.
        """
        return {row[0] for row in self._many("touch", queue_ids=queue_ids)} if queue_ids else set()

    def expire(self) -> list[str]:
        """Delete the perishable queues that nobody has used for their time, with their messages.

        A queue's time is its `expires_ms`; of one that is exclusive or deletes itself it is
        `ABANDONED_MS`, because whoever consumed it died without a word. It goes when this call and
        the one before, some seconds ago, found it unused: who has just been woken, or was cut off
        from the database like everybody, has not touched it yet.

        Atomicity: one transaction; nothing is written when there is nothing to do.

        Returns:
            The names of those that were deleted; may be empty.
        """
        unused = {row[0]: row[1] for row in self._many("expired", abandoned_ms=ABANDONED_MS)}
        doomed = [queue_id for queue_id, used_ms in unused.items() if self._unused.get(queue_id) == used_ms]
        self._unused = unused
        if not doomed:
            return []
        with self._database.transaction("queues.expire"):
            held = self._many("hold_expired", abandoned_ms=ABANDONED_MS, queue_ids=doomed)
            if held:
                self._remove([queue_id for queue_id, _ in held])
        return [name for _, name in held]

    def declare_exchange(self, name: str, type: str) -> None:  # noqa: A002
        """Make sure that an exchange exists; the last declaration says how it routes."""
        if self.exchange_type(name) != type:
            with self._database.apart():
                self._exec("declare_exchange", name=name, type=type)

    def exchange_type(self, name: str) -> str | None:
        """Return how an exchange routes; None when there is none."""
        rows = self._seen("exchange_type", name=name)
        return str(rows[0][0]) if rows else None

    def delete_exchange(self, name: str) -> None:
        """Remove an exchange and its bindings. No error when there is none."""
        self._exec("delete_exchange", name=name)

    def bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        """Route messages of *exchange* to *queue*. A second time changes nothing.

        Raises:
            QueueNotFound: There is no such queue.
        """
        names = {"exchange": exchange, "routing_key": routing_key, "pattern": pattern}
        with self._database.apart():
            if not self._exec("bind", queue=queue, **names) and self.get(queue) is None:
                raise errors.QueueNotFound(queue, f"there is no queue {queue!r} to bind")

    def unbind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        """Undo `bind`. No error when there is no such binding."""
        names = {"exchange": exchange, "routing_key": routing_key, "pattern": pattern}
        self._exec("unbind", queue=queue, **names)

    def bindings(self, exchange: str | None = None) -> list[Binding]:
        """Return the bindings of an exchange, or all, ordered by exchange and queue."""
        return [Binding(*row) for row in self._seen("bindings", exchange=exchange)]

    def arm(self, holder_id: str, queue_ids: Sequence[int], for_ms: int) -> None:
        """Say that a consumer is going to sleep until a message arrives in one of the queues.

        Whoever publishes there wakes it, and takes this word back. Does nothing where a consumer
        is woken by every commit, or by none.
        """
        if self._database.can_wake and queue_ids:
            self._exec("arm", holder=holder_id, queue_ids=queue_ids, for_ms=for_ms)

    def disarm(self, holder_id: str) -> None:
        """Say that a consumer sleeps no more."""
        if self._database.can_wake:
            self._exec("disarm", holder=holder_id)

    def ring(self, queue_ids: Sequence[int], count: int = 1) -> int:
        """Wake up to *count* consumers that sleep over the queues; return how many were woken."""
        if not self._database.can_wake or not queue_ids:
            return 0
        with self._database.at_home():
            return self._number("ring", queue_ids=queue_ids, count=count)

    def _seen(self, statement: str, /, **parameters: Any) -> list[Row]:
        """Look where a guest is at home, and beyond its transaction if that is too old to see what there is."""
        with self._database.at_home():
            rows = self._many(statement, **parameters)
        if not rows and self._database.guest() is not None:
            with self._database.apart():
                rows = self._many(statement, **parameters)
        return rows

    def _declare(self, spec: QueueSpec) -> Queue:
        while True:
            queue = self.get(spec.name) or self._insert(spec)
            if queue is None:
                continue  # made by somebody else between the two
            if queue.exclusive_to not in (None, spec.exclusive_to):
                raise errors.QueueInUse(spec.name, f"queue {spec.name!r} is exclusive to {queue.exclusive_to}")
            if not queue.perishable or self.touch([queue.id]):
                return queue

    def _insert(self, spec: QueueSpec) -> Queue | None:
        values = {item.name: getattr(spec, item.name) for item in dataclasses.fields(QueueSpec)}
        row = self._one("insert", **{**values, "arguments": json.dumps(dict(spec.arguments))})
        return None if row is None else _queue(row)

    def _is_consumed(self, name: str, queue_id: int) -> bool:
        stale_ms = round(self._database.settings.stale_after_s * 1000)
        return self._says("consumed", name=name, queue_id=queue_id, stale_ms=stale_ms)

    def _remove(self, queue_ids: Sequence[int]) -> int:
        # Until a pass finds nothing: a message may change its state under our hands.
        removed, found = 0, -1
        while found:
            found = self._number("empty", queue_ids=queue_ids)
            removed += found
        self._exec("drop", queue_ids=queue_ids)
        return removed

    def _says(self, statement: str, /, **parameters: Any) -> bool:
        row = self._one(statement, **parameters)
        return row is not None and bool(row[0])

    def _number(self, statement: str, /, **parameters: Any) -> int:
        row = self._one(statement, **parameters)
        return int(row[0] or 0) if row is not None else 0


def _queue(row: Row) -> Queue:
    values = dict(zip(_COLUMNS, row, strict=True))
    values["auto_delete"] = bool(values["auto_delete"])
    values["arguments"] = json.loads(values["arguments"])
    return Queue(**values)
