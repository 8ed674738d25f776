"""What a worker knows of limits that publishers may not: a release that changes one counts at once, and for all."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery.worker import state

from atomic_celery import errors, limits
from atomic_celery.store import Store
from atomic_celery.store.records import Limit

if TYPE_CHECKING:
    from atomic_celery.worker.requests import HeldRequest

logger = logging.getLogger(__name__)


def declare(app: Any, store: Store) -> None:
    """Let every limited task of *app*, and every one that is limited no longer, have the limits that it says.

    Raises:
        ConfigError: A task says something that is none.
    """
    known = store.limits.tasks()
    for task in app.tasks.values():
        if limits.is_limited(task) or task.name in known:
            store.limits.redeclare(limits.of_task(task))


def holds_back(request: HeldRequest) -> bool:
    """Send a request to the gate that it has not passed because its publisher knew of none; False: there is none."""
    limit = _limit_it_has_not_passed(request)
    if limit is None:
        return False
    state.task_ready(request)
    request.acknowledged = True
    request.host.roll.leave(request)
    request.host.chronicle.released(request, "limited")
    request.host.settling.gate(request, limit)
    return True


def _limit_it_has_not_passed(request: HeldRequest) -> Limit | None:
    if request.held is None or request.claim["limited"] or not limits.is_limited(request.task):
        return None
    try:
        return limits.limit_of_call(request.task, request.args, request.kwargs)
    except errors.LimitKeyError as error:
        logger.error("%s[%s] waits for the limit of all its calls: %s", request.name, request.id, error)
        return limits.of_task(request.task)
