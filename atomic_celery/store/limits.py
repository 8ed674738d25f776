"""Limits that hold over all hosts, and the gates at which messages wait for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from atomic_celery import clock
from atomic_celery.store.connection import Row
from atomic_celery.store.database import Database, Noun
from atomic_celery.store.records import Claimed, Gated, Held, Holder, Lane, Limit, Survey, claimed_of

LANES_AT_ONCE = 100
"""How many lanes of a queue one survey looks at."""

KEY_WITHIN_MS = 250
"""How long whoever has other things to do waits for a key that somebody else's open transaction publishes under."""

UNUSED_MS = 24 * 3600 * 1000
"""How long a limit is kept that no message has."""

_STALE_MS = UNUSED_MS // 2
_REMEMBERED_S = 60.0
_MOST_REMEMBERED = 10_000

_Known = tuple[Limit, int, float]


class Limits(Noun):
    """The verbs of limits. Each is one statement, or a transaction where it says so."""

    noun = "limits"

    def __init__(self, database: Database, ring: Callable[[Sequence[int], int], object]) -> None:
        super().__init__(database)
        self._ring = ring
        self._known: dict[str, _Known] = {}

    def resolve(self, limits: Iterable[Limit]) -> dict[str, int]:
        """Return the ids of limits by their names; the last one to say what a limit is, is right.

        Atomicity: outlasts a rollback of a guest's transaction. What was asked a minute ago is not asked again.
        """
        wanted = {limit.name: limit for limit in limits}
        now_s = clock.monotonic_s()
        known = {name: self._known.get(name) for name in wanted}
        ids = {name: each[1] for name, each in known.items() if each and each[2] > now_s and each[0] == wanted[name]}
        missing = [limit for name, limit in wanted.items() if name not in ids]
        if missing:
            with self._database.apart() as lasting:
                ids |= self._declare(missing)
            if lasting:
                if len(self._known) > _MOST_REMEMBERED:
                    self._known.clear()
                self._known |= {limit.name: (limit, ids[limit.name], now_s + _REMEMBERED_S) for limit in missing}
        return ids

    def redeclare(self, limit: Limit) -> int:
        """Let all keys of a task have these limits; return how many had others.

        Atomicity: one transaction.
        """
        said = dataclasses.asdict(limit)
        said.pop("name")
        with self._database.transaction("limits.redeclare"):
            changed = self._many("change_task", **said)
        self._known.clear()
        return len(changed)

    def tasks(self) -> set[str]:
        """Return the names of the tasks that have limits here."""
        return {row[0] for row in self._many("tasks")}

    def survey(self, lanes: Sequence[Lane], limit: int, *, after: str = "", ending: Sequence[int] = ()) -> Survey:
        """Look, without a lock, which messages at gates might pass.

        Args:
            lanes: Where the caller would claim.
            limit: How many it could claim.
            after: Leave out the lanes of gates up to this one.
            ending: Messages whose claims end in the caller's transaction.
        """
        rows = self._many(
            "survey",
            queue_ids=sorted({lane.queue_id for lane in lanes}),
            lanes=[(lane.queue_id, lane.priority, lane.after) for lane in lanes],
            limit=limit,
            after=after,
            window=LANES_AT_ONCE,
            ending=list(ending),
        )
        by_kind: dict[str, list[Row]] = {"gated": [], "ready": [], "wait": [], "more": []}
        for kind, *facts in rows:
            by_kind[kind].append(tuple(facts))
        return Survey(
            gated=[_gated(*facts) for facts in by_kind["gated"]],
            ready={facts[1]: int(facts[2]) for facts in by_kind["ready"]},
            wait_ms=next((int(facts[0]) for facts in by_kind["wait"]), None),
            last_lane=next((facts[6] for facts in by_kind["more"]), None),
        )

    def admit(self, holder: Holder, chosen: Sequence[Gated], lease_ms: int) -> list[Claimed]:
        """Claim messages at gates, as far as their limits have room; none for a draining host.

        Atomicity: one transaction; joins the caller's, and from here to its end holds the limits it counted.

        Returns:
            At most *chosen*, in their order. A limit that another host holds just now lets nobody through.
        """
        if not chosen:
            return []
        with self._database.transaction("limits.admit"):
            limit_ids = sorted({limit_id for gated in chosen for limit_id in gated.limit_ids})
            held = [row[0] for row in self._many("hold", limit_ids=limit_ids)] if limit_ids else []
            passing = [gated.id for gated in chosen if set(gated.limit_ids) <= set(held)]
            if not passing:
                return []
            rows = self._many(
                "admit",
                limit_ids=held,
                message_ids=passing,
                limit=len(passing),
                holder=holder.id,
                boot=holder.boot,
                is_host=holder.is_host,
                lease_ms=lease_ms,
            )
        place = {message_id: at for at, message_id in enumerate(passing)}
        return sorted(map(claimed_of, rows), key=lambda claimed: place[claimed.id])

    def regate(self, held: Held, limit: Limit) -> bool:
        """Send a held message to the gate of a limit that its publisher did not know; False: it was not ours any more.

        Atomicity: one transaction; joins the caller's. No crash is counted.
        """
        with self._database.transaction("limits.regate"):
            limit_id = self.resolve([limit])[limit.name]
            return bool(self._many("regate", id=held[0], fence=held[1], limit_id=limit_id))

    def freed(self, limit_ids: Iterable[int]) -> None:
        """Wake a sleeper of each queue in which messages wait for one of these limits: it has room again."""
        if self._database.can_wake:
            for (queue_id,) in self._many("sleepers", limit_ids=sorted(limit_ids)):
                self._ring([queue_id], 1)

    def key_holders(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the task ids that hold these keys, by key; where a key is free, none.

        Atomicity: one statement; joins the caller's transaction, and that of a guest.
        """
        with self._joining():
            return {key: task_id for key, task_id in self._many("key_holders", keys=keys) if task_id is not None}

    def hurry(self) -> None:
        """Wait but `KEY_WITHIN_MS` for a key, for the rest of the transaction; SQLite has one lock for all.

        Raises:
            StoreBusy: Here never; by what is published then. All of the transaction is undone.
        """
        if self._database.dialect == "postgresql":
            self._exec("hurry", wait_ms=KEY_WITHIN_MS)

    def expire(self, limit: int) -> int:
        """Drop up to *limit* limits that no message has had for a day; return how many."""
        row = self._one("expire", unused_ms=UNUSED_MS, limit=limit)
        return int(row[0]) if row is not None else 0

    def _declare(self, limits: Sequence[Limit]) -> dict[str, int]:
        """Make sure that limits are there and what they should be; return their ids."""
        names = [limit.name for limit in limits]
        found = self._find(names)
        if len(found) < len(limits):
            new = [dataclasses.asdict(limit) for limit in limits if limit.name not in found]
            self._exec("insert", limits=new)
            found = self._find(names)
        for limit in limits:
            _, *has, stale = found[limit.name]
            says = [limit.max_running, limit.rate_starts, limit.rate_ms]
            if has != says or stale:
                self._exec("change", **{key: getattr(limit, key) for key in ("name", *_VALUES)})
        return {name: row[0] for name, row in found.items()}

    def _find(self, names: Sequence[str]) -> dict[str, Row]:
        return {row[0]: row[1:] for row in self._many("find", names=names, stale_ms=_STALE_MS)}


_VALUES = ("max_running", "rate_starts", "rate_ms")


def _gated(
    message_id: int,
    priority: int,
    limit_id: int | None,
    root_limit_id: int | None,
    task_room: int,
    root_room: int,
    lane: str,
    unbegun: int | None,
) -> Gated:
    rooms = {each: int(room) for each, room in ((limit_id, task_room), (root_limit_id, root_room)) if each is not None}
    if root_limit_id is not None and unbegun is not None:
        rooms[-root_limit_id] = int(unbegun)
    return Gated(message_id, priority, lane, rooms)
