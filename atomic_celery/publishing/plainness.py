"""What is so plain that Celery need not be asked: code of the application's own must always run."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from celery import Celery as CeleryApp
from celery import signals
from celery.app.routes import MapRoute, Router
from celery.app.task import Task
from celery.backends.base import Backend
from celery.canvas import Signature

from atomic_celery import limits

if TYPE_CHECKING:
    from celery import Celery

_SIGNALS = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
_FEW, _SHORT, _SMALL = 8, 64, 2**63


def of_app(app: Celery) -> bool:
    """Whether nothing but Celery's own code decides what becomes of a task that is sent."""
    conf = app.conf
    return (
        not any(signal.receivers for signal in _SIGNALS)
        and not conf.task_always_eager
        and not conf.task_send_sent_event
        and conf.task_protocol == 2
        and all(type(route) is MapRoute for route in getattr(app.amqp.router, "routes", ()))
        and _is_celerys(Router, app.amqp.router, "route")
        and _is_celerys(CeleryApp, app, "send_task")
        and _is_unwrapped(Signature.apply_async)
    )


def of_task(task: Task[..., Any] | None) -> bool:
    """Whether sending *task* runs no code of its own; of a task that is not known here only its name is sent."""
    if task is None:
        return True
    own_methods = ("apply_async", "shadow_name", "_get_exec_options")
    return (
        all(_is_celerys(Task, task, name) for name in own_methods)
        and not getattr(task, "pydantic", False)
        and not limits.differs_by_call(task)
    )


def of_backend(backend: Backend) -> bool:
    """Whether a result backend does nothing when a task is sent."""
    return _is_celerys(Backend, backend, "on_task_call")


def is_hashable(value: object) -> bool:
    """Whether *value* can be a key."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def short_repr(value: Any) -> str | None:
    """Return what Celery's slow `saferepr` says of a few short values; None: too much for that."""
    if len(value) > _FEW:
        return None
    items = (*value, *value.values()) if isinstance(value, dict) else value
    return repr(value) if type(value) in (tuple, list, dict) and all(map(_is_short, items)) else None


def _is_short(value: Any) -> bool:
    if type(value) is str:
        return len(value) <= _SHORT and value.isalnum()
    return value is None or type(value) in (bool, float) or (type(value) is int and -_SMALL < value < _SMALL)


def _is_celerys(base: type, instance: Any, name: str) -> bool:
    """Whether *instance* has a method as Celery wrote it: neither overridden, nor replaced, nor wrapped."""
    if name in vars(instance):
        return False
    method = getattr(type(instance), name, None)
    return method is getattr(base, name) and _is_unwrapped(method)


def _is_unwrapped(function: Any) -> bool:
    return inspect.unwrap(function) is function
