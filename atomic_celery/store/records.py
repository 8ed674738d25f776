"""What goes into and comes out of the store about messages: plain values, no behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Held = tuple[int, int]
"""A message's id, and the fence under which it is held."""


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

    @property
    def held(self) -> Held:
        """Id and fence."""
        return self.id, self.fence


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


@dataclass(frozen=True, slots=True)
class Settlement:
    """How claims end: what one turn settles."""

    completed: Sequence[Held] = ()
    released: Sequence[Held] = ()
    crashed: Sequence[tuple[Held, str]] = field(default=())
    """With the reason."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn settled and claimed."""

    settled: frozenset[int]
    """Ids that were ours to complete, release or report as crashed."""
    crashed: list[Crashed]
    claimed: list[Claimed]
    """In the order of the lanes, first in first out within one."""
