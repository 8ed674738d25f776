"""Remote control commands that mean something else when delays wait in the database and a drain is more than a stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.worker.control import Panel

SCHEDULED_AT_MOST = 1000
_ANSWER_WITHIN_S = 2.0


def install() -> None:
    """Put our commands in front of Celery's own, which go on serving workers of other brokers. Safe to repeat."""
    for name, command in (("scheduled", scheduled), ("shutdown", shutdown)):
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
    return [_entry(message) for message in waiting]


def _entry(message: Any) -> dict[str, Any]:
    return {
        "eta": message.due_ms,
        "priority": message.priority,
        "request": {"id": message.task_id, "name": message.task_name, "delivery_info": {"routing_key": message.queue}},
    }


def shutdown(host: Any, state: Any, msg: str = "Got shutdown from remote", **_: Any) -> None:  # noqa: ARG001
    """Drain, as on the first signal."""
    host.shutdown.drain("remote")
