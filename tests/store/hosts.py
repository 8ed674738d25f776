"""Holders that claim through their gates, and messages under limits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atomic_celery.gate import Gate
from atomic_celery.store.records import Claimed, Held, Holder, Limit, Settlement, Turn
from tests.store.desk import ALICE, LEASE_MS, Desk

ONE = Limit("one", "one", max_running=1)
TWO = Limit("two", "two", max_running=2)
THREE_A_MINUTE = Limit("rate", "rate", rate_starts=3, rate_ms=60_000)


class Host:
    """A holder that claims through its gate, as a consumer does."""

    def __init__(self, desk: Desk, holder: Holder = ALICE) -> None:
        self.desk, self.holder = desk, holder
        self.gate = Gate(desk.store, holder, LEASE_MS)

    def turn(self, completed: Sequence[Held] = (), limit: int = 10) -> Turn:
        """Take one turn."""
        lanes = self.desk.lanes()

        def claim(limit: int) -> Turn:
            return self.desk.messages.turn(self.holder, Settlement(completed), lanes, limit, LEASE_MS)

        return self.gate.turn(lanes, limit, [held[0] for held in completed], claim)

    def claim(self, limit: int = 10) -> list[Claimed]:
        """Claim what there is; as many turns as a consumer would take before it sleeps."""
        claimed = self.turn(limit=limit).claimed
        while self.gate.is_unfinished and len(claimed) < limit:
            claimed += self.turn(limit=limit - len(claimed)).claimed
        return claimed


def limited(desk: Desk, limit: Limit, count: int = 1, **facts: Any) -> list[int]:
    """Publish messages under a limit; return their ids."""
    ids = desk.messages.publish([desk.new(limit=limit, task_name=limit.name, **facts) for _ in range(count)])
    return [message_id for message_id in ids if message_id is not None]
