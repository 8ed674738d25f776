"""Remote control commands that mean something else when delays wait in the database and a drain is more than a stop."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

from celery.utils.functional import maybe_list
from celery.worker import state as celerys
from celery.worker.control import Panel
from celery.worker.request import Request

from atomic_celery import errors
from atomic_celery.worker.revoking import withdraw_all

logger = logging.getLogger(__name__)

MANY = 100
"""From how many task ids on a revoke is carried out for all together, and answered with their number."""
SCHEDULED_AT_MOST = 100
_ANSWER_WITHIN_S = 2.0
_PRIORITY_OF_A_DELAY = 6  # what Celery's timer gives every delayed task


def install() -> None:
    """Put our commands in front of Celery's own, which go on serving workers of other brokers. Safe to repeat."""
    for command in (revoke, revoke_by_stamped_headers, scheduled, shutdown, time_limit):
        name = command.__name__
        original = Panel.data[name]
        if not hasattr(original, "celerys_own"):
            Panel.data[name] = _choosing(command, original)


def _choosing(ours: Callable[..., Any], celerys_own: Callable[..., Any]) -> Callable[..., Any]:
    def choose(state: Any, **arguments: Any) -> Any:
        host = getattr(state.consumer.controller, "atomic", None)
        if host is None:
            return celerys_own(state, **arguments)
        return ours(host, state, **arguments)

    choose.celerys_own = celerys_own  # type: ignore[attr-defined]
    choose.__doc__ = celerys_own.__doc__
    return choose


def revoke(host: Any, state: Any, task_id: Any, **arguments: Any) -> Any:
    """Revoke tasks, also those that wait in the pool for a child, which Celery's own would let begin."""
    answer = _flag(state, task_id, **arguments)
    withdraw_all(host)
    return answer


def revoke_by_stamped_headers(host: Any, state: Any, headers: Any, **arguments: Any) -> Any:
    """Revoke tasks by their stamps, also those that wait in the pool for a child."""
    answer = Panel.data["revoke_by_stamped_headers"].celerys_own(state, headers, **arguments)  # type: ignore[attr-defined]
    withdraw_all(host)
    return answer


def _flag(state: Any, task_id: Any, **arguments: Any) -> Any:
    """Revoke tasks, many of them together: Celery's own keeps the event loop for a millisecond and more with each."""
    celerys_own = Panel.data["revoke"].celerys_own  # type: ignore[attr-defined]
    asked = set(maybe_list(task_id) or ())
    backend = state.app.backend
    if len(asked) < MANY or not hasattr(backend, "mark_many_as_revoked"):
        return celerys_own(state, task_id, **arguments)
    here = asked & celerys.requests.keys()
    celerys.revoked.update(asked - here)
    threading.Thread(target=_mark, args=(backend, asked - here), name="atomic-revoke", daemon=True).start()
    answer = celerys_own(state, list(here), **arguments) if here else {"ok": "terminate: tasks unknown"}
    logger.info("%d tasks flagged as revoked", len(asked))
    return answer if arguments.get("terminate") else {"ok": f"{len(asked)} tasks flagged as revoked"}


def _mark(backend: Any, task_ids: set[str]) -> None:
    """Let those know who wait for what will not run; what cannot be said now, when a worker meets the message."""
    try:
        backend.mark_many_as_revoked(sorted(map(str, task_ids)), reason="revoked")
    except errors.StoreError as error:
        logger.warning(
            "cannot record that %d tasks are revoked, each ends so when its turn comes: %s", len(task_ids), error
        )


def scheduled(host: Any, state: Any, **_: Any) -> list[dict[str, Any]]:
    """List the tasks that wait for their time in this worker's queues, the next due first."""
    names = [queue.name for queue in state.consumer.task_consumer.queues]
    with host.store.deadline(_ANSWER_WITHIN_S):
        queues = [queue for queue in map(host.store.queues.get, names) if queue is not None]
        waiting = host.store.reads.scheduled([queue.id for queue in queues], SCHEDULED_AT_MOST)
        payloads = [host.store.reads.payload(message.id) for message in waiting]
    return [entry for payload in payloads if payload is not None and (entry := _entry(state, payload))]


def _entry(state: Any, payload: str) -> dict[str, Any] | None:
    """Return what Celery shows of a request that waits in a worker."""
    raw, consumer = json.loads(payload), state.consumer.task_consumer
    if raw["headers"].get("task") not in state.app.tasks:
        return None
    raw["properties"]["delivery_tag"] = None  # what was never claimed has none
    message = consumer.channel.Message(raw, channel=consumer.channel, accept=consumer.accept)
    request = Request(message, app=state.app, hostname=state.hostname)
    eta = request.eta.isoformat() if request.eta else None
    return {"eta": eta, "priority": _PRIORITY_OF_A_DELAY, "request": request.info()}


def shutdown(host: Any, state: Any, msg: str = "Got shutdown from remote", **_: Any) -> None:  # noqa: ARG001
    """Drain, as on the first signal."""
    host.shutdown.drain("remote")


def time_limit(host: Any, state: Any, **arguments: Any) -> Any:  # noqa: ARG001
    """Set a task's limits, if they are numbers: no message of it could be run under others."""
    for name in ("hard", "soft"):
        limit_s = arguments.get(name)
        if not isinstance(limit_s, int | float | None):
            return {"error": f"the {name} time limit is a number of seconds, got {limit_s!r}"}
    return Panel.data["time_limit"].celerys_own(state, **arguments)  # type: ignore[attr-defined]
