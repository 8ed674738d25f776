"""Sending a task under its limits, and handing out the result of the task that a second call of its key joined.

Celery asks a task nothing when it is sent but its options. So this is, besides a group's, the one method of Celery's
that is replaced, for all apps at once; for apps with another broker it does what it did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.app.base import Celery
from celery.app.task import Task

from atomic_celery import current

if TYPE_CHECKING:
    from celery.result import AsyncResult

_TRIES = 3


def install() -> None:
    """Replace ``Celery.send_task``, and let tasks speak of their roots. Safe to repeat."""
    Task.spend, Task.is_cancelled = _spend, _is_cancelled  # type: ignore[attr-defined]
    sends_plainly: Callable[..., AsyncResult[Any]] = Celery.send_task
    if hasattr(sends_plainly, "knows_limits"):
        return

    def send_task(self: Celery, name: str, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """Send a task by its name, under the limits that it declares; see Celery's own."""
        if (root_id := current.root()) is not None and options.get("root_id") is None:
            options["root_id"] = root_id
        task = options.get("task_type") or self._tasks.get(name)  # type: ignore[attr-defined]
        if task is None or not publishes_here(self):
            return sends_plainly(self, name, args, kwargs, *rest, **options)
        # Here, because a project with another broker should not have to import it.
        from atomic_celery import limits

        declared = limits.of_call(task, args, kwargs, retries=options.get("retries") or 0)
        if declared is limits.NOTHING:
            return sends_plainly(self, name, args, kwargs, *rest, **options)
        with limits.sending(declared):
            if declared.unique_key is None:
                return sends_plainly(self, name, args, kwargs, *rest, **options)
            return _send_or_join(lambda: sends_plainly(self, name, args, kwargs, *rest, **options))

    send_task.knows_limits = True  # type: ignore[attr-defined]
    Celery.send_task = send_task  # type: ignore[method-assign,assignment]  # it takes whatever Celery's takes


def _send_or_join(send: Callable[[], AsyncResult[Any]]) -> AsyncResult[Any]:
    """Send a task whose key may be taken; return its result, or that of the task which holds the key."""
    from atomic_celery import refusals

    for _ in range(_TRIES):
        with refusals.noting() as refused:
            result = send()
        mine = [(store, message) for store, message in refused if message.task_id == result.id]
        if not mine:
            break
        if (holder := refusals.holders(mine).get(result.id)) is not None:
            return joined(result, holder)
        # It has ended since: this call is the first of its key again.
    return result


def joined(result: AsyncResult[Any], task_id: str) -> AsyncResult[Any]:
    """Return *result*, but of another task."""
    if task_id == result.id:
        return result
    other = result.app.AsyncResult(task_id, backend=result.backend)
    other.ignored = result.ignored
    return other


def publishes_here(app: Celery) -> bool:
    """Whether *app* sends its tasks through this package."""
    url = app.conf.broker_write_url or app.conf.broker_url or ""
    return "atomic" in str(url).partition("://")[0]


def _spend(self: Any, *, cost: float = 0.0, tokens: int = 0) -> None:
    """Report what this task has used of its root's budget; see `atomic_celery.roots.spend`."""
    from atomic_celery import roots

    roots.spend(self, cost=cost, tokens=tokens)


def _is_cancelled(self: Any) -> bool:
    """Whether this task's root is cancelled; see `atomic_celery.roots.is_cancelled`."""
    from atomic_celery import roots

    return roots.is_cancelled(self)
