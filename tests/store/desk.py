"""One queue, and the two holders that most stories are about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import Claimed, Holder, Lane, NewMessage
from atomic_celery.store.store import Store

NOW_MS = 1_700_000_000_000
LEASE_MS = 30_000
ALICE, BOB = Holder("alice", "boot-a"), Holder("bob", "boot-b")


_TRACES = " UNION ALL ".join(
    f"SELECT message_id FROM atomic_{table} WHERE message_id NOT IN (SELECT id FROM atomic_message)"
    for table in ("ready", "gated", "delayed", "claim", "dead", "crash")
)


class _Undone(Exception):
    """Somebody changed their mind."""


class Desk:
    """A store with one queue, at a time that only `pass_ms` moves."""

    def __init__(self, store: Store, queue: str = "celery") -> None:
        self.store, self.messages = store, store.messages
        self.queue_id = store.queues.declare(QueueSpec(name=queue)).id
        self.now_ms = NOW_MS
        store.at(NOW_MS)

    def pass_ms(self, by_ms: int) -> None:
        """Let the database's time go on."""
        self.now_ms += by_ms
        self.store.at(self.now_ms)

    def new(self, payload: str = "work", **facts: Any) -> NewMessage:
        """Return a message for the queue."""
        return NewMessage(self.queue_id, payload, **facts)

    def publish(self, payload: str = "work", **facts: Any) -> int:
        """Publish one message and return its id."""
        [message_id] = self.messages.publish([self.new(payload, **facts)])
        assert message_id is not None
        return message_id

    def lanes(self, after: int = 0) -> list[Lane]:
        """Return the queue's lanes, 9 first."""
        return [Lane(self.queue_id, priority, after) for priority in range(9, -1, -1)]

    def claim(self, holder: Holder = ALICE, limit: int = 100, after: int = 0) -> list[Claimed]:
        """Claim from the queue."""
        return self.messages.claim(holder, self.lanes(after), limit, LEASE_MS)

    def claim_one(self, holder: Holder = ALICE) -> Claimed:
        """Claim the one message there is."""
        [claimed] = self.claim(holder)
        return claimed

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Run what is inside in a transaction that is rolled back."""
        with suppress(_Undone), self.store.transaction():
            yield
            raise _Undone

    def state(self, message_id: int) -> str | None:
        """Say where a message is; None: nowhere."""
        view = self.store.reads.message(message_id)
        return None if view is None else view.state

    def traces_of_the_gone(self) -> list[int]:
        """Return the ids that some table still has of messages that there are not."""
        database = self.store._database
        return [row[0] for row in database.run(database.statements.script("traces", _TRACES)).rows]
