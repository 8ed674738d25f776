"""Roots: workflows that are admitted, paid for, paused and cancelled as one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from atomic_celery import errors
from atomic_celery.store.connection import Row
from atomic_celery.store.database import Database, Noun
from atomic_celery.store.limits import Limits
from atomic_celery.store.records import Held, Holder

RootState = Literal["running", "paused", "budget_exceeded", "cancelled"]

COUNT_BOUND = 10_000
"""Where counting what waits stops: a number that reached it is a lower bound."""

UNUSED_MS = 3600 * 1000
"""How long a root is kept that nobody declared and that has no message left."""

_ADOPTED_AT_ONCE = 5000
_CANCELLED_WITHIN_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RootTerms:
    """What a root may have; None: any amount."""

    max_running: int | None = None
    children: int | None = None
    """How many of its messages may begin; one that has, may again."""
    cost: float | None = None
    tokens: int | None = None
    duration_ms: int | None = None
    """How long it may run, pauses not counted."""
    warn_at_percent: int = 80
    labels: Mapping[str, str] | None = None
    """None: as they are."""

    def __post_init__(self) -> None:
        for name in ("max_running", "children", "cost", "tokens", "duration_ms"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise errors.ConfigError(f"{name} of a root must be above 0, got {value!r}")
        if not 1 <= self.warn_at_percent <= 100:
            raise errors.ConfigError(f"warn_at_percent must be in 1 to 100, got {self.warn_at_percent!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RootView:
    """A root as it is. Times are the database's."""

    id: str
    state: RootState
    declared: bool
    """Whether somebody did; else it has a row because it was steered or has very many messages."""
    labels: Mapping[str, str] = field(default_factory=dict)
    max_running: int | None
    running: int
    waiting: int
    """Messages at its gate, up to the bound."""
    started: int
    """How many of its messages have begun; one that begins again, or whose task is retried, is still the same."""
    waiting_again: int
    """How many of those wait at its gate, to begin again, up to the bound."""
    retrying: int
    """How many of them wait for the time of their retry, up to the bound."""
    delayed: int
    """Messages that wait for their time, whether they have begun before or not, up to the bound."""
    budget_children: int | None
    budget_cost: float | None
    budget_tokens: int | None
    budget_ms: int | None
    warn_at_percent: int
    spent_cost: float
    spent_tokens: int
    ran_ms: int
    """How long it has been running, pauses not counted."""
    created_ms: int
    changed_ms: int
    cancel_until_ms: int | None
    """Until when what runs of a cancelled one may end by itself."""
    exact: bool
    """Whether no more than the bound wait to begin again, or for a retry: else fewer have `finished` than it says."""

    @property
    def finished(self) -> int:
        """How many have come to an end, or were put aside as dead; at most so many, if that is not `exact`."""
        return max(0, self.started - self.running - self.waiting_again - self.retrying)

    @property
    def terms(self) -> RootTerms:
        """What it may have; its labels stay as they are."""
        return RootTerms(
            max_running=self.max_running,
            children=self.budget_children,
            cost=self.budget_cost,
            tokens=self.budget_tokens,
            duration_ms=self.budget_ms,
            warn_at_percent=self.warn_at_percent,
        )


@dataclass(frozen=True, slots=True)
class Unfinished:
    """How many messages of a root are unfinished, and where; each up to the bound."""

    total: int
    running: int
    delayed: int
    dead: int


_Roots = list[RootView]  # inside the class, list is a verb


@dataclass(frozen=True, slots=True)
class RootsInUse:
    """How many roots use the database now, of those that have a row."""

    running: int
    """Not paused or cancelled, with a message that is unfinished; also those whose budget is spent."""
    paused: int
    exact: bool
    """Whether all roots were looked at: else only the latest `COUNT_BOUND`."""


class Roots(Noun):
    """The verbs of roots. Each is one transaction, and joins the caller's."""

    noun = "roots"

    def __init__(self, database: Database, limits: Limits) -> None:
        super().__init__(database)
        self._limits = limits

    def open(self, root_id: str) -> bool:
        """Make sure that a root has a row, and its messages wait at its gate; False: it had one."""
        with self._database.transaction("roots.open"):
            made = self._one("insert_limit", id=root_id)
            if made is None:
                return False
            [limit_id] = made
            self._exec("insert", id=root_id, limit_id=limit_id)
        self.adopt(root_id)
        return True

    def adopt(self, root_id: str) -> int:
        """Let its messages that were published before it had a row wait at its gate; return how many.

        Atomicity: each of so many messages by itself.
        """
        held = self._one("hold", id=root_id)
        total, count = 0, -1
        while held is not None and count:
            [[count]] = self._many("adopt", id=root_id, limit_id=held[0], limit=_ADOPTED_AT_ONCE)
            total += count
        if total:
            self._exec("count_in", id=root_id)
        return total

    def set(self, root_id: str, terms: RootTerms) -> bool:
        """Let a root have these terms, and no others; False: it was new."""
        is_new = self.open(root_id)
        labels = None if terms.labels is None else json.dumps(dict(terms.labels), sort_keys=True)
        facts = {name: getattr(terms, name) for name in ("max_running", "children", "cost", "tokens", "duration_ms")}
        with self._database.transaction("roots.set"):
            self._one("hold", id=root_id)
            self._exec("set", id=root_id, warn_at_percent=terms.warn_at_percent, labels=labels, **facts)
            limit_id = self._apply(root_id)
        self._limits.freed([limit_id])
        return not is_new

    def turn(self, root_id: str, state: Literal["running", "paused", "cancelled"], *, grace_ms: int = 0) -> bool:
        """Let a root be in another state; False: it was, or it is cancelled, which is for good.

        From the return on nothing of a paused one starts, and of a cancelled one only to be told off as revoked.
        """
        self.open(root_id)
        with self._database.transaction("roots.turn"):
            held = self._one("hold", id=root_id)
            if held is None or held[1] in (state, "cancelled"):
                return False
            self._exec("turn", id=root_id, state=state, grace_ms=grace_ms)
            limit_id = self._apply(root_id)
        self.adopt(root_id)
        self._limits.freed([limit_id])
        return True

    def spend(self, held: Held, *, cost: float, tokens: int) -> str | None:
        """Add to what the root of a held message has spent; return its id, None where it has no row.

        Raises:
            LeaseLost: The message is not ours any more. Nothing was added.
        """
        message_id, fence = held
        with self._database.transaction("roots.spend"):
            row = self._one("spend", message_id=message_id, fence=fence, cost=cost, tokens=tokens)
            if row is None:
                raise errors.LeaseLost(message_id, fence, doing="spending")
            if row[0] is not None:
                self._apply(row[0])
        return None if row[0] is None else str(row[0])

    def get(self, root_id: str) -> RootView | None:
        """Return one root; None: it has no row, as most have none."""
        row = self._one("view", id=root_id, bound=COUNT_BOUND)
        return None if row is None else _view(row)

    def list(
        self,
        *,
        state: RootState | None = None,
        before: tuple[int, str] | None = None,
        limit: int = 100,
        bound: int = COUNT_BOUND,
    ) -> _Roots:
        """Return roots that have a row, the latest first, at most *limit*.

        Args:
            state: Only in this state.
            before: The creation time and id of the last one of the page before.
            bound: Where counting what waits stops.
        """
        before_ms, before_id = before or (None, None)
        rows = self._many("list", state=state, before_ms=before_ms, before_id=before_id, limit=limit, bound=bound)
        return [_view(row) for row in rows]

    def in_use(self, bound: int = COUNT_BOUND) -> RootsInUse:
        """Count the roots that use the database now, among the latest *bound* and one more."""
        row = self._one("in_use", bound=bound)
        assert row is not None  # it counts
        running, paused, looked_at = row
        return RootsInUse(running, paused, looked_at <= bound)

    def unfinished(self, root_id: str, bound: int = COUNT_BOUND) -> Unfinished:
        """Count its unfinished messages, up to *bound*; also of a root without a row."""
        [row] = self._many("unfinished", id=root_id, bound=bound)
        return Unfinished(*map(int, row))

    def cancelled_here(self, holder: Holder) -> dict[Held, bool]:
        """Return what a holder holds of cancelled roots, and whether their time to end by themselves is over."""
        rows = self._many(
            "cancelled_here", holder=holder.id, boot=holder.boot, cancelled_within_ms=_CANCELLED_WITHIN_MS
        )
        return {(message_id, fence): bool(over) for message_id, fence, over in rows}

    def reached(self) -> Sequence[tuple[str, int]]:
        """Return roots that have come to a part of their budget, in percent, that nobody was told of."""
        return [(root_id, percent) for root_id, percent in self._many("reached")]

    def tell(self, root_id: str, percent: int) -> bool:
        """Note that somebody is told of it; False: somebody was before.

        Atomicity: one statement; for the transaction that tells.
        """
        return self._one("tell", id=root_id, percent=percent) is not None

    def forget(self, limit: int) -> int:
        """Drop up to *limit* roots that nobody declared and that have no message left; return how many."""
        row = self._one("forget", unused_ms=UNUSED_MS, limit=limit)
        return int(row[0]) if row is not None else 0

    def _apply(self, root_id: str) -> int:
        self._exec("apply", id=root_id)
        held = self._one("hold", id=root_id)
        assert held is not None
        return int(held[0])


def _view(row: Row) -> RootView:
    values: dict[str, Any] = dict(zip(RootView.__dataclass_fields__, row, strict=True))
    said = {
        "declared": bool(values["declared"]),
        "labels": json.loads(values["labels"]),
        "exact": bool(values["exact"]),
    }
    return RootView(**{**values, **said})
