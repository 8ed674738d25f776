"""What a consumer wants of a claimer, and what it is given."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from atomic_celery.store.records import Claimed


@dataclass(frozen=True, slots=True)
class Want:
    """Up to *limit* messages of some queues."""

    queue_ids: tuple[int, ...]
    limit: int


NOTHING = Want((), 0)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a consumer wants now."""

    wants: tuple[Want, ...] = ()
    no_ack_queue_ids: tuple[int, ...] = ()
    touch_every_s: float = math.inf
    """How often its queues must be touched, not to be thought abandoned."""

    @property
    def consumed_ids(self) -> frozenset[int]:
        """The queues it consumes."""
        return frozenset(self.no_ack_queue_ids).union(*(want.queue_ids for want in self.wants))

    @property
    def wanted_ids(self) -> frozenset[int]:
        """The queues from which it could take a message now."""
        return frozenset(self.no_ack_queue_ids).union(*(want.queue_ids for want in self.wants if want.limit > 0))


class Consumer(Protocol):
    """Whom a claimer claims for."""

    def demand(self) -> Demand:
        """Say what is wanted; asked before each turn."""
        ...

    def deliver(self, claimed: list[Claimed]) -> None:
        """Take what was claimed or taken, in order; its leases are being renewed already."""
        ...

    def redeclare(self, queue_ids: Collection[int]) -> None:
        """Make queues anew that went away although they were in use."""
        ...

    def settled(self) -> None:
        """Take note that verdicts have been told: whoever was told may wait for this consumer's thread."""
        ...


class Nobody:
    """A consumer that wants nothing."""

    def demand(self) -> Demand:
        """Want nothing."""
        return Demand()

    def deliver(self, claimed: list[Claimed]) -> None:
        """Never called."""

    def redeclare(self, queue_ids: Collection[int]) -> None:
        """Never called."""

    def settled(self) -> None:
        """Nobody waits."""
