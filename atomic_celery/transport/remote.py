"""What remote control means to the database: a revoke is remembered there, whoever hears of it or is asleep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kombu.serialization import loads

from atomic_celery.transport.codec import RawMessage

if TYPE_CHECKING:
    from atomic_celery.store import Store

_MAILBOXES, _REPLIES = ".pidbox", "reply."


def remember_revokes(store: Store, exchange: str, message: RawMessage) -> None:
    """Store the task ids that *message* revokes, if it is a remote control command that does."""
    if not exchange.endswith(_MAILBOXES) or exchange.startswith(_REPLIES):
        return
    if task_ids := sorted(_revoked_by(message)):
        store.revocations.add(task_ids, keep_ms=round(store.settings.revoked_keep_s * 1000))


def _revoked_by(message: RawMessage) -> Iterable[str]:
    content_type = message["content-type"]
    command = loads(message["body"], content_type, message["content-encoding"], accept=["application/json"])
    if not isinstance(command, dict) or command.get("method") != "revoke":
        return set()
    return set(_ids(command.get("arguments", {}).get("task_id")))


def _ids(named: Any) -> Iterable[str]:
    if isinstance(named, str):
        return (named,)
    return map(str, named or ())
