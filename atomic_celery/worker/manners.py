"""What a task says about itself, as opposed to what it was given by default.

Celery copies the configuration's defaults into a task's class when it is bound, and then nobody can see any more who
spoke. But a class remembers the order in which its attributes came: binding sets `__bound__` first, so what
stands before it was written by the task's author, and what stands behind it was filled in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from celery.app.annotations import resolve_all
from celery.app.task import Task
from celery.worker.request import Request


def says(task: Any, name: str) -> bool:
    """Whether the task, a class it inherits from, or an annotation sets the attribute *name*."""
    if name in vars(task):
        return True
    if any(name in each for each in _annotations(task)):
        return True
    for cls in type(task).__mro__:
        attributes = list(vars(cls))
        if vars(cls).get(name) is not None:
            return "__bound__" not in attributes or attributes.index(name) < attributes.index("__bound__")
    return False


def configured(conf: Any, name: str) -> bool:
    """Whether the app's configuration itself sets *name*, under its new name or its old one."""
    *said, _defaults = conf.maps
    return any(key in each for each in said for key in conf._to_keys(name))


def is_ordinary(task: Any) -> bool:
    """Whether the task's messages are handled by Celery's own classes, and none of its author's."""
    return task.Strategy == Task.Strategy and getattr(task.Request, "plain", task.Request) is Request


def _annotations(task: Any) -> list[Mapping[str, Any]]:
    found: Iterable[Any] = resolve_all(task.app.annotations, task)
    return [each for each in found if each]


def settle_late_by_default(task: Any) -> None:
    """Let a task that has no opinion be settled after it ended, not before it started."""
    if not task.acks_late and not says(task, "acks_late") and not configured(task.app.conf, "task_acks_late"):
        task.acks_late = True
