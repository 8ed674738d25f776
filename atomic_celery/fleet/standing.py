"""What fleet controllers have left in the database: who leads, what was planned last, whether the provider fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atomic_celery.fleet.controller import TERM
from atomic_celery.fleet.memory import Memory

if TYPE_CHECKING:
    from atomic_celery.store.store import Store

LATE_AFTER_MS = 60_000
"""A plan that is older than some ticks is not what goes on now."""


@dataclass(frozen=True, slots=True)
class ControllerStatus:
    """The fleet's controller, as of the database's clock."""

    holder: str | None
    """Who leads; None: nobody, so no host is added or removed."""
    since_ms: int | None
    """Since when, as a database timestamp."""
    planned_ago_ms: int | None
    """None: nothing was planned yet."""
    planned_by: str | None
    provisioner: str | None
    """What kind of it; None: it failed, or nothing was planned."""
    reasons: Sequence[str]
    """What was planned and why, in words."""
    scaling: Mapping[str, int | bool]
    """What was seen then: the scaling signal under its policy; empty: the provider failed, or nothing was planned."""
    instances: int | None
    """How many the provider listed then."""
    provider_failures: int
    """How often in a row it has failed; the hosts that there are stay."""
    provider_retry_in_ms: int | None
    """When it is asked again; None: at the next tick."""

    @property
    def is_late(self) -> bool:
        """Whether the plan is too old to be what goes on now."""
        return self.planned_ago_ms is not None and self.planned_ago_ms > LATE_AFTER_MS


def read(store: Store) -> ControllerStatus | None:
    """Read it; None: no controller has led yet."""
    term = next((term for term in store.terms.list() if term.name == TERM), None)
    if term is None:
        return None
    leads, left, now_ms = term.left_ms > 0, store.controllers.load(TERM), store.now_ms()
    plan = {} if left is None else left.plan
    memory = Memory() if left is None else Memory.of(left.memory)
    retry_in_ms = memory.provider_retry_ms - now_ms
    return ControllerStatus(
        holder=term.holder if leads else None,
        since_ms=term.begun_ms if leads else None,
        planned_ago_ms=None if left is None else now_ms - left.ticked_ms,
        planned_by=plan.get("holder"),
        provisioner=plan.get("provisioner"),
        reasons=tuple(plan.get("reasons", ())),
        scaling=plan.get("scaling", {}),
        instances=plan.get("instances"),
        provider_failures=memory.provider_failures,
        provider_retry_in_ms=retry_in_ms if memory.provider_failures and retry_in_ms > 0 else None,
    )
