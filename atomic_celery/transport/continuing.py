"""What a running task publishes under its own id: its continuation, which must replace it and not be refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery import _state

from atomic_celery import current
from atomic_celery.current import Running
from atomic_celery.store import NewMessage, Store


def split(new: Sequence[NewMessage]) -> tuple[Running | None, list[NewMessage], list[NewMessage]]:
    """Return the message that runs here, its continuations among *new*, and the others."""
    running = _running() if new and new[0].task_name is not None else None
    if running is None:
        return None, [], list(new)
    own = [message for message in new if message.task_id == running.task_id]
    return running, own, [message for message in new if message.task_id != running.task_id]


def replace(store: Store, running: Running, own: Sequence[NewMessage]) -> None:
    """Let *own* come after the message that runs, from when that is settled.

    Raises:
        LeaseLost: It is not ours any more. Nothing was stored.
    """
    if running.outbox is not None:
        running.outbox.extend(own)
        return
    first, *others = own
    store.messages.supersede((running.message_id, running.fence), first)
    if others:
        store.messages.publish(others)


def _running() -> Running | None:
    return current.running() or _claim_of(_state.get_current_worker_task())


def _claim_of(task: Any) -> Running | None:
    """Read the claim in the request of the task that Celery says runs here, in whatever pool.

    One that was settled before it started has none left: it continues as a message like any other.
    """
    claim = task is not None and (task.request.properties or {}).get("atomic")
    return Running(claim["id"], claim["fence"], task.request.id) if claim else None
