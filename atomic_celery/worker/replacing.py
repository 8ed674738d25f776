"""Replacing a task in Celery's own pools: all of the replacement takes over from the task, or none of it does.

A chain in its place hands the task's id on to its last part. As long as the task is unsettled that id is taken, and the
part would be refused as there already. (The pool ``atomic`` publishes replacements with the task's end.)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject

from atomic_celery import current, errors, outbox
from atomic_celery.outbox import Entry, Outbox
from atomic_celery.store.records import NewMessage
from atomic_celery.transport import continuing

if TYPE_CHECKING:
    from atomic_celery.current import Running
    from atomic_celery.store import Store


def take_over(app: Any, store: Store) -> None:
    """Make replacements take over from tasks of *app*; to be done before there are processes that run them."""
    for task in app.tasks.values():
        task.on_replace = _taking_over(task, task.on_replace, store)


def _taking_over(task: Any, on_replace: Callable[..., Any], store: Store) -> Callable[..., Any]:
    @functools.wraps(on_replace)
    def replace(signature: Any) -> Any:
        running = continuing.of_request(task)
        if running is None or current.running() is not None:
            return on_replace(signature)
        box = Outbox(store.journal, closing=True)
        box.own_ids.add(task.request.id)
        try:
            with current.holding(dataclasses.replace(running, outbox=box)):
                ended = on_replace(signature)
        except Ignore:
            _publish(store, running, box.entries)
            raise
        _publish(store, running, box.entries)
        return ended

    return replace


def _publish(store: Store, running: Running, entries: Sequence[Entry]) -> None:
    """Store a replacement whose first message is what the running one settles into.

    Raises:
        LeaseLost: It is not ours any more. Nothing was stored.
        Reject: The database did not answer; the task runs again, unless all was stored after all.
    """
    first = next((entry for entry in entries if isinstance(entry, NewMessage)), None)
    try:
        with store.transaction("replace"):
            if first is not None:
                store.messages.supersede((running.message_id, running.fence), first)
            outbox.deliver(store, [entry for entry in entries if entry is not first])
    except (errors.StoreUnavailable, errors.StoreBusy) as error:
        raise Reject(error, requeue=True) from error
