"""What remote control means to the database: a revoke is remembered there, whoever hears of it or is asleep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kombu.serialization import loads

from atomic_celery.store.revocations import Stamp
from atomic_celery.transport.codec import RawMessage

if TYPE_CHECKING:
    from atomic_celery.store import Store

_MAILBOXES, _REPLIES = ".pidbox", "reply."


def remember_revokes(store: Store, exchange: str, message: RawMessage) -> None:
    """Store the task ids or stamps that *message* revokes, if it is a remote control command that does."""
    if not exchange.endswith(_MAILBOXES) or exchange.startswith(_REPLIES):
        return
    command = _command_in(message)
    arguments, keep_ms = command.get("arguments") or {}, round(store.settings.revoked_keep_s * 1000)
    if command.get("method") == "revoke":
        store.revocations.add(_texts(arguments.get("task_id")), keep_ms)
    elif command.get("method") == "revoke_by_stamped_headers":
        store.revocations.revoke_stamps(_stamps(arguments.get("headers")), keep_ms)


def _command_in(message: RawMessage) -> Mapping[str, Any]:
    content_type = message["content-type"]
    command = loads(message["body"], content_type, message["content-encoding"], accept=["application/json"])
    return command if isinstance(command, dict) else {}


def _texts(named: Any) -> Iterable[str]:
    if isinstance(named, str):
        return (named,)
    return map(str, named or ())


def _stamps(headers: Any) -> Iterable[Stamp]:
    """Read ``{header: value or values}``, or ``header=value`` texts, as Celery does."""
    if isinstance(headers, Mapping):
        return [(str(header), value) for header, values in headers.items() for value in _texts(values)]
    pairs = (text.partition("=") for text in _texts(headers))
    return [(header, value) for header, _, value in pairs]
