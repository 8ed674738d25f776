"""What operators look at: how full, how healthy. Bounded, so that looking never becomes a load."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from atomic_celery.store.connection import Row
from atomic_celery.store.database import Noun

State = Literal["ready", "limited", "delayed", "running", "dead"]

COUNT_BOUND = 100_000
"""Where counting stops: a number that reached it is a lower bound."""
_SAMPLE = 1000


@dataclass(frozen=True, slots=True)
class Depth:
    """How full one queue is."""

    queue_id: int
    name: str
    temporary: bool
    """Whether it goes away with its consumer or by itself: a reply queue, a mailbox."""
    ready: int
    limited: int
    """Those that wait for a limit or a root to let them through."""
    delayed: int
    running: int
    lapsed: int
    """Of the running ones, those whose lease ran out and that nobody has reclaimed yet."""
    dead: int
    waiting: int
    """Consumers that sleep until a message arrives."""
    ready_since_ms: int | None
    """When the longest waiting ready message was published or came due, by the database's clock."""
    at_least: tuple[str, ...]
    """The counts above that are only lower bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which messages; None: whatever it is."""

    state: State | None = None
    queue: str | None = None
    task: str | None = None
    """The task's whole name."""
    root: str | None = None
    text: str | None = None
    """A piece of the message as it is stored, in any case."""


@dataclass(frozen=True, slots=True)
class MessageView:
    """An unfinished message, where it is, and everything else but its payload. Times are the database's."""

    id: int
    queue: str
    state: State
    task_id: str | None
    task_name: str | None
    root_id: str | None
    priority: int
    fence: int
    crashes: int
    published_ms: int
    due_ms: int | None
    expires_ms: int | None
    holder: str | None
    host: str | None
    """The holder's name, if it is a registered host."""
    boot: str | None
    claimed_ms: int | None
    lease_until_ms: int | None
    reason: str | None
    """Why it is dead; of a limited one, what it waits for."""
    buried_ms: int | None


@dataclass(frozen=True, slots=True)
class CrashView:
    """A time that a message's holder died with it."""

    fence: int
    holder: str
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A message that breaks invariant I1: how often each state names it."""

    message_id: int
    ready: int
    limited: int
    delayed: int
    running: int
    dead: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """Work that nobody moves."""

    lapsed: int
    due: int


@dataclass(frozen=True, slots=True)
class Room:
    """A server's room for connections."""

    usable: int
    reserved: int
    """What the server keeps for its own administrators."""
    used: int
    autovacuum: bool
    sees_all: bool
    """Whether this user may see what other users' sessions do."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Somebody who keeps dead rows from being vacuumed."""

    kind: str
    name: str
    state: str
    application: str
    age_ms: int | None


@dataclass(frozen=True, slots=True)
class Bloat:
    """A table's rows as the server's statistics estimate them."""

    table: str
    live: int
    dead: int
    vacuumed_ago_ms: int | None
    autovacuum_off: bool


class Reads(Noun):
    """Numbers for people. Nothing in the protocol depends on them."""

    noun = "reads"

    def depths(self, bound: int = COUNT_BOUND) -> list[Depth]:
        """Count every queue's messages, each state up to *bound*, in the order of names."""
        rows = self._many("depths", bound=bound)
        capped = [name for name, at in _CAPPED_TOGETHER.items() if sum(row[at] for row in rows) > bound]
        return [_depth(row, bound, capped) for row in rows]

    def messages(
        self, which: Filter | None = None, *, before: int | None = None, limit: int = 100
    ) -> list[MessageView]:
        """Return unfinished messages, the newest first, with ids below *before*, at most *limit*."""
        rows = self._many("messages", id=None, before=before, limit=limit, **dataclasses.asdict(which or Filter()))
        return [MessageView(*row) for row in rows]

    def scheduled(self, queue_ids: Sequence[int], limit: int) -> list[MessageView]:
        """Return the delayed messages of these queues, the next due first, at most *limit*."""
        return [MessageView(*row) for row in self._many("scheduled", queue_ids=queue_ids, limit=limit)]

    def message(self, message_id: int) -> MessageView | None:
        """Return one unfinished message."""
        rows = self._many("messages", id=message_id, before=None, limit=1, **dataclasses.asdict(Filter()))
        return MessageView(*rows[0]) if rows else None

    def payload(self, message_id: int) -> str | None:
        """Return a message as it was published, JSON text."""
        row = self._one("payload", id=message_id)
        return None if row is None else str(row[0])

    def crashes(self, message_id: int) -> list[CrashView]:
        """Return how often the holders of a message died, the first time first."""
        return [CrashView(*row) for row in self._many("crashes", id=message_id)]

    def ids_of_task(self, task_id: str) -> list[int]:
        """Return the ids of the unfinished messages of a task id; more than one if several queues have it."""
        return [row[0] for row in self._many("ids_of_task", task_id=task_id)]

    def probe_write(self) -> None:
        """Write and commit something that changes nothing."""
        self._exec("write_probe")

    def misplaced(self, sample: int = _SAMPLE) -> list[Misplaced]:
        """Return those of the *sample* oldest and newest messages that are in no state, or in several."""
        return [Misplaced(*row) for row in self._many("misplaced", sample=sample)]

    def overdue(self, grace_ms: int) -> Overdue:
        """Count leases and delays that ended more than *grace_ms* ago, each up to `COUNT_BOUND`."""
        [row] = self._many("overdue", grace_ms=grace_ms, bound=COUNT_BOUND)
        return Overdue(*row)

    def version(self) -> str:
        """Return the version of the database itself."""
        [(version,)] = self._many("version")
        return str(version)

    def journal(self) -> str:
        """Return SQLite's journal mode."""
        [(name,)] = self._many("journal")
        return str(name)

    def room(self) -> Room:
        """Return a PostgreSQL server's room for connections."""
        [row] = self._many("connections")
        return Room(*row)

    def snapshots(self, older_than_ms: int) -> list[Snapshot]:
        """Return who keeps PostgreSQL from vacuuming for longer than *older_than_ms*, at most 20."""
        return [Snapshot(*row) for row in self._many("snapshots", older_than_ms=older_than_ms)]

    def bloat(self) -> list[Bloat]:
        """Return PostgreSQL's estimates of dead rows, a busy table each."""
        return [Bloat(*row) for row in self._many("bloat")]


# These stop at the bound over all queues together; where they stand in a row.
_CAPPED_TOGETHER = {"limited": 4, "delayed": 5, "running": 6, "dead": 8}


def _depth(row: Row, bound: int, capped: list[str]) -> Depth:
    queue_id, name, temporary, *counts, waiting, since_ms = row
    ready, limited, delayed, running, lapsed, dead = (min(count, bound) for count in counts)
    at_least = (["ready"] if counts[0] > bound else []) + capped
    return Depth(
        queue_id=queue_id,
        name=name,
        temporary=bool(temporary),
        ready=ready,
        limited=limited,
        delayed=delayed,
        running=running,
        lapsed=lapsed,
        dead=dead,
        waiting=waiting,
        ready_since_ms=since_ms,
        at_least=tuple(at_least),
    )
