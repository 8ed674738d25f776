"""Roots, for applications: declare a workflow, send tasks under it, look at it and steer it.

with atomic_celery.root("import-42", max_running=8, budget=Budget(children=10_000, cost=50.0)) as root:
    for row in rows:
        import_row.delay(row)
root.progress()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.app import app_or_default
from celery.exceptions import TimeoutError as CeleryTimeoutError

from atomic_celery import clock, current, errors, names, operations
from atomic_celery.store import Store
from atomic_celery.store.roots import COUNT_BOUND, RootState, RootTerms, RootView
from atomic_celery.transport import broker, continuing

if TYPE_CHECKING:
    from celery import Celery
    from celery.canvas import Signature
    from celery.result import AsyncResult

GRACE_S = 30.0
"""How long tasks of a cancelled root may go on, unless something else is said."""

_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a root may use up; None: any amount. When one of them is spent, nothing more of it starts."""

    children: int | None = None
    """How many of its tasks may begin. One that has begun runs to its end: a retry, or another run after a crash, is
    the same child."""
    cost: float | None = None
    """In whatever the tasks report with ``self.spend(cost=…)``."""
    tokens: int | None = None
    duration_s: float | None = None
    """Since it was declared; pauses do not count."""
    warn_at_percent: int = 80
    """At which part of any of them a fleet event says so, once."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a root has come. Counts of what is unfinished stop at 10 000.

    They are those of one moment each: what ends between two of them may be in neither, or in both.
    """

    started: int
    """How many tasks of it have begun since it was declared; however often one is retried or runs again, it is one."""
    finished: int
    """How many of them have come to an end, or were put aside as dead; at most so many, if over 10 000 begin again."""
    unfinished: int
    running: int
    delayed: int
    dead: int

    @property
    def waiting(self) -> int:
        """How many wait for a host, or for the root to let them start."""
        return self.unfinished - self.running - self.delayed - self.dead


class Root:
    """A workflow that is steered as one: all messages that have its id for their ``root_id``.

    Args:
        app: Whose database. Default: the current app.
    """

    def __init__(self, root_id: str, *, app: Celery | None = None) -> None:
        if not root_id or not names.is_storable(root_id):
            raise errors.ConfigError(f"the id of a root is text, and not empty; got {root_id!r}")
        self.id = root_id
        self._app = app_or_default(app)

    @classmethod
    def get(cls, root_id: str, *, app: Celery | None = None) -> RootView | None:
        """Return how a root is; None: nobody has declared or steered it.

        Raises:
            StoreUnavailable: The database is away.
        """
        with cls(root_id, app=app)._store() as store:
            return store.roots.get(root_id)

    @property
    def state(self) -> RootState:
        """Its state; one that has no row is running."""
        view = Root.get(self.id, app=self._app)
        return "running" if view is None else view.state

    def set(
        self,
        *,
        max_running: int | None = None,
        budget: Budget | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Let it have these terms, and no others. What waits starts if they let it.

        Raises:
            ConfigError: They make no sense.
        """
        terms = _terms(max_running, budget or Budget(), labels)
        with self._store() as store:
            operations.set_root(store, self.id, terms, asked_by=operations.asker())

    def pause(self) -> bool:
        """Let nothing of it start from now on; what runs goes on. False: it was paused, or is cancelled."""
        with self._store() as store:
            return operations.pause_root(store, self.id, asked_by=operations.asker()).changed

    def resume(self) -> bool:
        """Let it go on. False: it did, or it is cancelled."""
        with self._store() as store:
            return operations.resume_root(store, self.id, asked_by=operations.asker()).changed

    def cancel(self, *, grace_s: float = GRACE_S) -> bool:
        """End it for good: what waits is revoked, what runs is killed *grace_s* later. False: it was cancelled."""
        with self._store() as store:
            asked_by = operations.asker()
            return operations.cancel_root(store, self.id, grace_ms=round(grace_s * 1000), asked_by=asked_by).changed

    def progress(self) -> Progress:
        """Count what there is of it."""
        with self._store() as store:
            view, unfinished = store.roots.get(self.id), store.roots.unfinished(self.id, COUNT_BOUND)
        started, finished = (view.started, view.finished) if view is not None else (0, 0)
        return Progress(started, finished, unfinished.total, unfinished.running, unfinished.delayed, unfinished.dead)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until nothing of it is unfinished but what is dead.

        Raises:
            celery.exceptions.TimeoutError: *timeout_s* passed first.
        """
        until_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
        with self._store() as store:
            while (seen := store.roots.unfinished(self.id, COUNT_BOUND)).total > seen.dead:
                if until_s is not None and clock.monotonic_s() >= until_s:
                    raise CeleryTimeoutError(f"{seen.total} messages of the root {self.id!r} are unfinished")
                clock.pause(_LOOK_EVERY_S)

    def apply_async(self, signature: Signature, *args: Any, **options: Any) -> AsyncResult[Any]:
        """Send a task or a canvas as part of it."""
        signature.freeze(root_id=self.id)
        with current.in_root(self.id):
            return signature.apply_async(*args, **options)

    @contextmanager
    def _store(self) -> Iterator[Store]:
        with self._app.connection_for_write() as connection:
            borrowed = broker.borrow(connection)
        try:
            yield borrowed.store
        finally:
            broker.give_back(borrowed)


@contextmanager
def root(
    root_id: str,
    *,
    max_running: int | None = None,
    budget: Budget | None = None,
    labels: Mapping[str, str] | None = None,
    app: Celery | None = None,
) -> Iterator[Root]:
    """Declare a root, and let every task that is sent in the block belong to it.

    Args:
        max_running: How many of its tasks run at once, over all hosts.
        app: Whose database. Default: the current app.

    Raises:
        ConfigError: The terms make no sense.
    """
    declared = Root(root_id, app=app)
    declared.set(max_running=max_running, budget=budget, labels=labels)
    with current.in_root(root_id):
        yield declared


def spend(task: Any, *, cost: float = 0.0, tokens: int = 0) -> None:
    """Report what a running task has used of its root's budget, under its fence: ``self.spend(cost=…, tokens=…)``.

    Raises:
        LeaseLost: The task is not ours any more. Nothing was counted.
        ConfigError: An amount is below 0, or nothing runs here that has a lease.
    """
    if cost < 0 or tokens < 0:
        raise errors.ConfigError(f"a task can spend no less than nothing, got cost={cost!r}, tokens={tokens!r}")
    running = current.running() or continuing.of_request(task)
    if running is None:
        raise errors.ConfigError(
            f"{task.name} holds no message here: only a running task that is settled late can spend"
        )
    with Root(task.request.root_id or task.request.id, app=task.app)._store() as store:
        store.roots.spend((running.message_id, running.fence), cost=cost, tokens=tokens)


def is_cancelled(task: Any) -> bool:
    """Whether the root of a running task is cancelled, so that it had better end by itself."""
    return Root(task.request.root_id or task.request.id, app=task.app).state == "cancelled"


def _terms(max_running: int | None, budget: Budget, labels: Mapping[str, str] | None) -> RootTerms:
    return RootTerms(
        max_running=max_running,
        children=budget.children,
        cost=budget.cost,
        tokens=budget.tokens,
        duration_ms=None if budget.duration_s is None else round(budget.duration_s * 1000),
        warn_at_percent=budget.warn_at_percent,
        labels=labels,
    )
