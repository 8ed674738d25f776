"""What some host has to do for all: make due messages ready, reclaim those of the dead, drop what nobody needs."""

from __future__ import annotations

from collections.abc import Callable

from atomic_celery import clock
from atomic_celery.config import Settings
from atomic_celery.store.fleet_events import Kind
from atomic_celery.store.records import Crashed
from atomic_celery.store.store import Store

PROMOTE_AT_LEAST_EVERY_S = 60.0
PROMOTE_AT_MOST_EVERY_S = 0.2
EXPIRE_QUEUES_EVERY_S = 30.0
EXPIRE_AT_ONCE = 1000
SPENT_PERCENT = 100
FOLD_TRAFFIC_EVERY_S = 300.0
FORGET_PUBLISHERS_AFTER_MS = 24 * 3600 * 1000


class Upkeep:
    """The turns of one consumer in what concerns every consumer.

    Args:
        crashed: Told of every message this consumer made ready again, or buried, after its holder's end.
        mourn: Sees to what buried messages leave behind.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        crashed: Callable[[list[Crashed]], None],
        mourn: Callable[[], None],
    ) -> None:
        self._store, self._settings, self._crashed, self._mourn = store, settings, crashed, mourn
        now_s = clock.monotonic_s()
        self._promote_at_s = self._reclaim_at_s = now_s
        self._promoted_s = 0.0
        self._expire_at_s = now_s + EXPIRE_QUEUES_EVERY_S
        self._fold_at_s = now_s + FOLD_TRAFFIC_EVERY_S

    def look_at_delays(self) -> None:
        """Ask soon when the next message comes due: a sooner one may have been published."""
        self._promote_at_s = min(self._promote_at_s, self._promoted_s + PROMOTE_AT_MOST_EVERY_S)

    def turn(self, *, calm: bool) -> bool:
        """Do what is due; True if messages became ready by it.

        Args:
            calm: Whether this consumer has nothing to do: then it asks half as often.
        """
        now_s = clock.monotonic_s()
        moved = now_s >= self._promote_at_s and self._promote(now_s)
        if now_s >= self._reclaim_at_s:
            self._reclaim_at_s = now_s + self._settings.recover_every_s * (2 if calm else 1)
            self._tell_of_budgets()
            if crashed := self._store.messages.reclaim():
                self._crashed(crashed)
                moved = True
            self._mourn()
        if now_s >= self._expire_at_s:
            self._expire_at_s = now_s + EXPIRE_QUEUES_EVERY_S
            self._store.queues.expire()
            self._store.limits.expire(EXPIRE_AT_ONCE)
            self._store.roots.forget(EXPIRE_AT_ONCE)
            if self._store.results.expire(EXPIRE_AT_ONCE) == EXPIRE_AT_ONCE:
                self._expire_at_s = now_s  # there is more
        if now_s >= self._fold_at_s:
            self._fold_at_s = now_s + FOLD_TRAFFIC_EVERY_S
            self._store.traffic.fold()
            self._store.messages.forget_publishers(FORGET_PUBLISHERS_AFTER_MS)
        return moved

    def _tell_of_budgets(self) -> None:
        """Record, once, that a root comes to the end of its budget, and that it is there."""
        for root_id, percent in self._store.roots.reached():
            kind: Kind = "root-budget-exceeded" if percent >= SPENT_PERCENT else "root-warned"
            with self._store.transaction("budgets"):
                if self._store.roots.tell(root_id, percent):
                    self._store.events.record(kind, root=root_id, detail={"percent": percent})

    def _promote(self, now_s: float) -> bool:
        self._promoted_s = now_s
        moved_count, next_ms = self._store.messages.promote()
        wait_s = PROMOTE_AT_LEAST_EVERY_S if next_ms is None else next_ms / 1000
        self._promote_at_s = now_s + min(wait_s, PROMOTE_AT_LEAST_EVERY_S)
        return moved_count > 0

    def wait_s(self) -> float:
        """Return seconds until something is due."""
        due_s = min(self._promote_at_s, self._reclaim_at_s, self._expire_at_s, self._fold_at_s)
        return max(0.0, due_s - clock.monotonic_s())
