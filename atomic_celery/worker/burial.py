"""What a buried message leaves behind: a failed result, so that nobody waits for it for ever, and a fleet event."""

from __future__ import annotations

import base64
import json
import logging
from typing import TYPE_CHECKING, Any

from celery.app.task import Context
from celery.exceptions import WorkerLostError
from kombu.serialization import loads, prepare_accept_content
from kombu.utils.encoding import str_to_bytes

from atomic_celery import errors, outbox

if TYPE_CHECKING:
    from atomic_celery.outbox import Entry
    from atomic_celery.store.records import Crashed, Untold
    from atomic_celery.worker.host import Host

logger = logging.getLogger(__name__)


def record(host: Host, crashed: Crashed) -> None:
    """Note that a message was buried. Called on the claimer's thread; what fails here fails alone."""
    detail = {"message": crashed.id, "task": crashed.task_name, "task_id": crashed.task_id}
    try:
        host.store.events.record("message-dead", host=crashed.holder, root=crashed.root_id, detail=detail)
    except errors.StoreError as error:
        logger.warning("The burial of message %d could not be noted: %s", crashed.id, error)


def mourn(host: Host) -> None:
    """Fail the tasks of messages that were buried where nobody could do it: by the fleet, as their host had died.

    Atomicity: the note that it is done is one transaction with what it leaves, or comes after that if results are
        elsewhere. So whoever dies, another host does it.

    Raises:
        StoreUnavailable: It goes on another time.
    """
    # Asked first without a transaction, which would keep SQLite's other writers out.
    while (untold := host.store.messages.untold()) is not None:
        _tell(host, untold)


def _tell(host: Host, waiting: Untold) -> None:
    """Store the failure of what waits, if it still does; what the database refuses is never asked of it again."""
    try:
        with host.store.transaction("burial"):
            if (untold := host.store.messages.untold()) is not None:
                waiting = untold  # another host may have the first
                outbox.deliver(host.store, _failure(host, untold))
                host.store.messages.tell((untold.id, untold.fence))
    except errors.StoreRefused as error:
        logger.error("The result of buried message %d cannot be stored: %s", waiting.id, error)
        host.store.messages.tell((waiting.id, waiting.fence))


def _failure(host: Host, untold: Untold) -> list[Entry]:
    """Return what the failure of a task leaves, as far as it can go along."""
    with outbox.collecting(host.store.journal) as entries:
        try:
            _fail(host, untold)
        except errors.StoreError:
            raise
        except Exception:
            logger.exception("The result of buried message %d could not be stored", untold.id)
    return entries


def _fail(host: Host, untold: Untold) -> None:
    payload = host.store.reads.payload(untold.id)
    if payload is None or untold.task_id is None or untold.task_name is None:
        return
    app = host.worker.app
    task = app.tasks.get(untold.task_name)
    try:
        context = _context(payload, app.conf.accept_content)
    except Exception:  # what it would have told is unreadable, but somebody may wait for its result
        context = Context({"id": untold.task_id})
    *_, last = host.store.reads.crashes(untold.id)
    error = WorkerLostError(f"it did not end properly {untold.crashes} times, the message is buried: {last.reason}")
    ignored = getattr(context, "ignore_result", False) or (task is not None and task.ignore_result)
    (task or app).backend.mark_as_failure(
        untold.task_id,
        error,
        request=context,
        store_result=not ignored or (task is not None and task.store_errors_even_if_ignored),
    )


def _context(payload: str, accept: Any) -> Context:
    """Return what Celery needs to tell a task's group, chord and error callbacks."""
    message = json.loads(payload)
    headers, properties = message["headers"], message["properties"]
    body = message["body"]
    if properties.get("body_encoding") == "base64":
        body = base64.b64decode(body)
    _, _, embedded = loads(
        str_to_bytes(body), message["content-type"], message["content-encoding"], accept=prepare_accept_content(accept)
    )
    routing = {name: properties.get(name) for name in ("reply_to", "correlation_id")}
    routing["delivery_info"] = properties.get("delivery_info") or {}
    return Context({**headers, **routing, **(embedded or {})})
