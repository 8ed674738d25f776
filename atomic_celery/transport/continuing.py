"""What a running task publishes, as far as it belongs to the task's end.

What it publishes under its own id is its continuation: it must replace it, and not be refused as already there. The
rest goes along with the end where there is an outbox for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from celery import _state

from atomic_celery import current, outbox
from atomic_celery.current import Running
from atomic_celery.store import NewMessage, Store


def set_aside(store: Store, new: Sequence[NewMessage]) -> list[NewMessage]:
    """Set aside what belongs to the end of the task that runs here; return what is to be published now.

    Raises:
        LeaseLost: It is not ours any more. Nothing was stored.
    """
    if not new or new[0].task_name is None:
        return list(new)
    running = _running()
    if (box := outbox.of_here(store.journal)) is not None and running is not None:
        continued = [replace(message, again=True) if message.task_id == running.task_id else message for message in new]
        return box.take(continued, joining=store.joining())
    if running is None or running.outbox is not None:
        return list(new)
    if own := [message for message in new if message.task_id == running.task_id]:
        _replace(store, running, own)
    return [message for message in new if message.task_id != running.task_id]


def _replace(store: Store, running: Running, own: Sequence[NewMessage]) -> None:
    """Let *own* come after the message that runs, from when that is settled."""
    first, *others = own
    store.messages.supersede((running.message_id, running.fence), first)
    if others:
        store.messages.publish(others)


def _running() -> Running | None:
    return current.running() or of_request(_state.get_current_worker_task())


def of_request(task: Any) -> Running | None:
    """Read the claim in the request of the task that Celery says runs here, in whatever pool.

    One that was settled before it started has none left: it continues as a message like any other.
    """
    claim = task is not None and (task.request.properties or {}).get("atomic")
    return Running(claim["id"], claim["fence"], task.request.id) if claim else None
