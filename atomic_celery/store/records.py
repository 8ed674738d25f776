"""What goes into and comes out of the store about messages: plain values, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Held = tuple[int, int]
"""A message's id, and the fence under which it is held."""

UniqueUntil = Literal["queued", "unfinished"]


@dataclass(frozen=True, slots=True)
class Limit:
    """What holds over all hosts for the messages that name it; None: that does not."""

    name: str
    task: str
    max_running: int | None = None
    rate_starts: int | None = None
    """How many may start within any `rate_ms`."""
    rate_ms: int | None = None


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be published."""

    queue_id: int
    payload: str
    task_id: str | None = None
    task_name: str | None = None
    root_id: str | None = None
    priority: int = 0
    due_ms: int | None = None
    """When it may be claimed; None: at once."""
    expires_ms: int | None = None
    """From when on it must not run."""
    limit: Limit | None = None
    unique_key: str | None = None
    """No second message with this key is stored, as long as *unique_until* says."""
    unique_until: UniqueUntil | None = None
    again: bool = False
    """Whether its task has begun before, as another message: to its root it is the same child."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A message under a lease: what to run, and the fence that proves the right to."""

    id: int
    fence: int
    queue_id: int
    priority: int
    payload: str
    crashes: int
    task_id: str | None
    revoked: bool
    expired: bool
    position: int
    """Its place in its lane, for the lane's `after`."""
    waited_ms: int | None = None
    """How long it had been ready, or at a gate; None: it was claimed before, and nobody knows since when."""
    limit_id: int | None = None
    """The limit of its task that it was admitted under."""
    root_limit_id: int | None = None

    @property
    def held(self) -> Held:
        """Id and fence."""
        return self.id, self.fence


def claimed_of(row: Sequence[Any]) -> Claimed:
    """Read a claimed message from a statement's answer."""
    facts = list(row)
    facts[7:9] = map(bool, row[7:9])  # what SQLite has for "revoked" and "expired" is a number
    return Claimed(*facts)


@dataclass(frozen=True, slots=True)
class Lane:
    """Where to look for messages: one priority of one queue, from a position on."""

    queue_id: int
    priority: int
    after: int = 0


@dataclass(frozen=True, slots=True)
class Holder:
    """Who claims."""

    id: str
    boot: str
    is_host: bool = False
    """Whether it has a host row, which may forbid it to claim; a bare consumer has none."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """What became of the leases that were to be renewed: message ids."""

    renewed: frozenset[int]
    unconfirmed: frozenset[int]
    """Locked by somebody just now: neither renewed nor lost."""
    lost: frozenset[int]


@dataclass(frozen=True, slots=True)
class Crashed:
    """A message whose holder died with it."""

    id: int
    fence: int
    crashes: int
    buried: bool
    task_id: str | None
    task_name: str | None
    holder: str
    root_id: str | None = None


@dataclass(frozen=True, slots=True)
class Untold:
    """A message that was buried for its crashes, and whose task's failure is not stored."""

    id: int
    fence: int
    crashes: int
    task_id: str | None
    task_name: str | None


@dataclass(frozen=True, slots=True)
class Settlement:
    """How claims end: what one turn settles."""

    completed: Sequence[Held] = ()
    released: Sequence[Held] = ()
    crashed: Sequence[tuple[Held, str]] = field(default=())
    """With the reason."""
    buried: Sequence[tuple[Held, str]] = field(default=())
    """Likewise, and however often they have crashed."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn settled and claimed."""

    settled: frozenset[int]
    """Ids that were ours to complete, release or report as crashed."""
    crashed: list[Crashed]
    claimed: list[Claimed]
    """In the order of the lanes, first in first out within one."""
    gated: bool = False
    """Whether messages wait at gates in the queues that were looked at."""


@dataclass(frozen=True, slots=True)
class Gated:
    """A message that waits at a gate and might pass, as a survey saw it."""

    id: int
    priority: int
    lane: str
    """Which limits it has, as one word."""
    rooms: Mapping[int, int]
    """How many more each of its limits lets through; under a negative id, how many that never began."""

    @property
    def limit_ids(self) -> tuple[int, ...]:
        """The limits that it has."""
        return tuple(limit_id for limit_id in self.rooms if limit_id > 0)


@dataclass(frozen=True, slots=True)
class Survey:
    """What one look at the gates of some queues told."""

    gated: list[Gated]
    """Each lane's first messages, in their order."""
    ready: dict[int, int]
    """How many messages of each priority are ready, up to the survey's limit."""
    wait_ms: int | None
    """When a rate that is used up has room again."""
    last_lane: str | None
    """Where to go on, if there are more lanes than were looked at."""
