"""How a kombu message becomes a row, and a claimed row a kombu message again.

The payload is the kombu message as JSON text. A body that is text stays readable in it; bytes are base64.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

from dateutil.parser import isoparse
from kombu.utils.json import JSONEncoder
from kombu.utils.json import loads as loads_with_types

from atomic_celery import names
from atomic_celery.store.records import Claimed, NewMessage

RawMessage = dict[str, Any]

LOWEST_PRIORITY, HIGHEST_PRIORITY = 0, 9

_readable = JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_escaped = JSONEncoder(ensure_ascii=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Packed:
    """A message ready to be stored, once for each queue it is routed to."""

    payload: str
    task_id: str | None
    task_name: str | None
    root_id: str | None
    priority: int
    due_ms: int | None
    expires_ms: int | None
    lives_ms: int | None
    again: bool

    def into(self, queue_id: int, *, expires_ms: int | None) -> NewMessage:
        """Return the row for one queue."""
        return NewMessage(
            queue_id=queue_id,
            payload=self.payload,
            task_id=self.task_id,
            task_name=self.task_name,
            root_id=self.root_id,
            priority=self.priority,
            due_ms=self.due_ms,
            expires_ms=expires_ms,
            again=self.again,
        )


def name_publication(headers: Mapping[str, Any], properties: dict[str, Any]) -> None:
    """Give a message that is no task an id of its own, the same for every attempt to publish it."""
    if "id" not in headers:
        properties.setdefault("publish_id", uuid4().hex)


def pack(message: RawMessage, exchange: str, routing_key: str) -> Packed:
    """Encode a kombu message on its way to *exchange*.

    Raises:
        UnstorableName: The exchange, the routing key, or the id of the task or its root is none that a database stores.
    """
    names.require("exchange", exchange)
    names.require("routing key", routing_key)
    headers, properties = message["headers"], message["properties"]
    headers.pop("atomic_eta", None)  # what a retried task still carries of the claim it retries
    properties.pop("atomic", None)
    properties["delivery_info"] = {
        **properties.get("delivery_info", {}),
        "exchange": exchange,
        "routing_key": routing_key,
    }
    name_publication(headers, properties)
    packed = {**message, **_packed_body(message, properties)}
    facts = _facts(packed)
    is_task = "task" in facts
    task_id = _text_of(facts["id"] if "id" in facts else properties["publish_id"])
    names.require("task id", task_id)
    root_id = _column(facts.get("root_id"))
    names.require("root id", root_id)
    due_ms = _instant_ms(facts.get("eta")) if is_task else None
    if due_ms is not None and facts is not headers:
        packed["body"] = _readable.encode({**facts, "eta": None})  # as `unpack` does it with a header
    return Packed(
        payload=_dump(packed),
        task_id=task_id,
        task_name=_column(facts.get("task")),
        root_id=root_id,
        priority=_priority(properties.get("priority")),
        due_ms=due_ms,
        expires_ms=_instant_ms(facts.get("expires")) if is_task else None,
        lives_ms=_milliseconds(properties.get("expiration")),
        again=is_task and bool(facts.get("retries")),
    )


def unpack(claimed: Claimed) -> RawMessage:
    """Decode what was claimed; the proof of the claim rides in its properties."""
    # Only a payload with tagged types needs the slow decoder.
    load = loads_with_types if '"__type__"' in claimed.payload else json.loads
    message: RawMessage = load(claimed.payload)
    properties, headers = message["properties"], message["headers"]
    _check_body(message["body"], properties.get("body_encoding"))
    if headers.get("eta") and "task" in headers and _instant_ms(headers["eta"]) is not None:
        # The wait is over: with an eta left in it, Celery would hold the message in a timer once more.
        headers["atomic_eta"] = headers.pop("eta")
    properties["delivery_tag"] = f"{claimed.id}:{claimed.fence}"
    properties["delivery_info"]["redelivered"] = claimed.fence > 1
    properties["atomic"] = {
        "id": claimed.id,
        "fence": claimed.fence,
        "attempts": claimed.fence,
        "crashes": claimed.crashes,
        "revoked": claimed.revoked,
        "expired": claimed.expired,
        "waited_ms": claimed.waited_ms,
        "limited": claimed.limit_id is not None,
    }
    return message


def _check_body(body: object, encoding: object) -> None:
    """Make sure that kombu can read *body*: it would fail in the consumer's event loop."""
    if not isinstance(body, str) or encoding not in (None, "base64"):
        raise ValueError(f"a body is text, as it is or in base64, not {type(body).__name__} in {encoding!r}")
    if encoding == "base64":
        base64.b64decode(body)


def ends_revoked(message: RawMessage) -> bool:
    """Whether Celery itself has to hear that this message expired: a task with an expiry of its own."""
    facts = _facts(message)
    return "task" in facts and bool(facts.get("expires"))


def without_claim(message: RawMessage) -> RawMessage:
    """Copy a claimed message as it was before the claim, to publish it once more."""
    properties = {
        name: value
        for name, value in message["properties"].items()
        if name not in ("atomic", "delivery_tag", "expiration", "publish_id")
    }
    return {**message, "headers": dict(message["headers"]), "properties": properties}


def _facts(message: RawMessage) -> dict[str, Any]:
    """Return what says which task a message is and when: its headers, or its body if that is JSON in protocol 1."""
    headers: dict[str, Any] = message["headers"]
    body = message["body"]
    if "task" in headers or message.get("content-type") != "application/json":
        return headers
    if not isinstance(body, str) or '"task"' not in body:
        return headers
    try:
        facts = json.loads(body)
    except (ValueError, RecursionError):
        return headers
    return facts if isinstance(facts, dict) and {"task", "id", "args"} <= facts.keys() else headers


def _packed_body(message: RawMessage, properties: dict[str, Any]) -> RawMessage:
    """Return the parts of the message that say what is in the body, and how."""
    body, encoding = message["body"], message.get("content-encoding")
    if isinstance(body, str):
        # Published a second time as it was claimed: the body is still in the form it had in the table.
        return {"body": body, "properties": properties}
    data = bytes(body or b"")
    text = _text(data) if encoding == "utf-8" else None
    if text is not None:
        properties.pop("body_encoding", None)
        return {"body": text, "properties": properties}
    return {
        "body": base64.b64encode(data).decode("ascii"),
        "properties": {**properties, "body_encoding": "base64"},
    }


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _dump(message: RawMessage) -> str:
    try:
        text = _readable.encode(message)
    except TypeError:
        text = _readable.encode(_without_foreign_properties(message))
    return text if names.is_utf8(text) else _escaped.encode(json.loads(text))


def _without_foreign_properties(message: RawMessage) -> RawMessage:
    """Drop the properties that are not JSON: AMQP ignores those it does not know, and so do we."""
    kept = {name: value for name, value in message["properties"].items() if _is_json(value)}
    return {**message, "properties": kept}


def _is_json(value: Any) -> bool:
    try:
        _readable.encode(value)
    except TypeError:
        return False
    return True


def _text_of(value: Any) -> str | None:
    return None if value is None else str(value)


def _column(value: Any) -> str | None:
    """Return a name as a column can hold it, which is any but for NUL and half a surrogate pair."""
    text = _text_of(value)
    if text is None or names.is_storable(text):
        return text
    return text.encode("ascii", "backslashreplace").decode().replace("\0", "\\x00")


def _priority(value: Any) -> int:
    try:
        return max(LOWEST_PRIORITY, min(int(value), HIGHEST_PRIORITY))
    except (TypeError, ValueError, OverflowError):
        return LOWEST_PRIORITY


def _milliseconds(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _instant_ms(value: Any) -> int | None:
    """Read a moment as Celery writes it; None when there is none, or none that can be read."""
    if not value:
        return None
    try:
        moment = isoparse(value) if isinstance(value, str) else value
        if moment.tzinfo is None:  # Celery takes such a moment for UTC, too
            moment = moment.replace(tzinfo=timezone.utc)
        return _milliseconds(datetime.timestamp(moment) * 1000)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None
