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

from atomic_celery import errors

if TYPE_CHECKING:
    from atomic_celery.store.records import Crashed
    from atomic_celery.worker.host import Host

logger = logging.getLogger(__name__)


def record(host: Host, crashed: Crashed, *, fails: bool = True) -> None:
    """Note that a message was buried. Called on the claimer's thread; what fails here fails alone.

    Args:
        fails: Store its failure; else its request does.
    """
    try:
        detail = {"message": crashed.id, "task": crashed.task_name, "task_id": crashed.task_id}
        host.store.events.record("message-dead", host=crashed.holder, detail=detail)
        if fails:
            _fail_result(host, crashed)
    except errors.StoreError as error:
        logger.warning("The burial of message %d could not be noted: %s", crashed.id, error)
    except Exception:
        logger.exception("The result of buried message %d could not be stored", crashed.id)


def _fail_result(host: Host, crashed: Crashed) -> None:
    """Store the failure of a task whose whole host died again and again, or that nobody could receive."""
    payload = host.store.reads.payload(crashed.id)
    if payload is None or crashed.task_id is None or crashed.task_name is None:
        return
    app = host.worker.app
    task = app.tasks.get(crashed.task_name)
    backend = task.backend if task is not None else app.backend
    error = WorkerLostError(f"its worker died {crashed.crashes} times; the message is buried")
    try:
        context = _context(payload, app.conf.accept_content)
    except Exception:  # what it would have told is unreadable, but somebody may wait for its result
        context = Context({"id": crashed.task_id})
    backend.mark_as_failure(crashed.task_id, error, request=context)


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
    routing = {"reply_to": properties.get("reply_to"), "correlation_id": properties.get("correlation_id")}
    return Context({**headers, **routing, **(embedded or {})})
