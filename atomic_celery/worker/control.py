"""Remote control commands that mean something else when delays wait in the database and a drain is more than a stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from celery.worker.control import Panel
from celery.worker.request import Request

SCHEDULED_AT_MOST = 100
_ANSWER_WITHIN_S = 2.0
_PRIORITY_OF_A_DELAY = 6  # what Celery's timer gives every delayed task


def install() -> None:
    """Put our commands in front of Celery's own, which go on serving workers of other brokers. Safe to repeat."""
    for name, command in (("scheduled", scheduled), ("shutdown", shutdown), ("time_limit", time_limit)):
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
