"""Groups that send their tasks a thousand to a statement, and tell what they have sent.

A group sends one task after the other, each by itself, and Celery asks nobody whether there is a better way; nor does
it tell a result backend which parts a chord has whose header is a generator. So these two methods of Celery's are
replaced, for all apps at once; for apps with another broker they do what they did.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from celery import canvas
from celery.utils.functional import regen

_READ_LAZILY = type(regen(iter(())))
"""Of the parts of a group that are read one by one, Celery has some in its hands before it sends the first."""


_parts: ContextVar[list[Any] | None] = ContextVar("atomic_parts", default=None)


def parts() -> list[Any]:
    """Return the results of the tasks of the group that is sent here, as far as its tasks have been made."""
    return list(_parts.get() or ())


def install() -> None:
    """Replace ``group.apply_async`` and ``group._apply_tasks``. Safe to repeat."""
    group: Any = canvas.group
    apply_one_by_one, send = group.apply_async, group._apply_tasks
    if hasattr(apply_one_by_one, "sends_together"):
        return

    @functools.wraps(apply_one_by_one)
    def apply_async(self: canvas.group, *args: Any, **kwargs: Any) -> Any:
        from atomic_celery.sending import publishes_here  # here, because it may be what first imports groups' module

        if not publishes_here(self.app):
            return apply_one_by_one(self, *args, **kwargs)
        # Here, because a project with another broker should not have to import it.
        from atomic_celery.publishing.many import bulk_as_it_comes

        with bulk_as_it_comes(self.app, lazily=isinstance(self.tasks, _READ_LAZILY)):
            return apply_one_by_one(self, *args, **kwargs)

    @functools.wraps(send)
    def _apply_tasks(self: canvas.group, tasks: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        made: list[Any] = []
        outer = _parts.set(made)
        try:
            yield from send(self, _noting(tasks, made), *args, **kwargs)
        finally:
            _parts.reset(outer)

    apply_async.sends_together = True  # type: ignore[attr-defined]
    group.apply_async, group._apply_tasks = apply_async, _apply_tasks


def _noting(tasks: Iterable[Any], made: list[Any]) -> Iterator[Any]:
    for signature, result, group_id in tasks:
        made.append(result)
        yield signature, result, group_id
