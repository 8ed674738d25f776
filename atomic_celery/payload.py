"""What a stored message would call, in words that are safe to show: nothing is unpickled, secrets are masked."""

from __future__ import annotations

import ast
import base64
import binascii
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MASK = "********"
UNREADABLE = "(not shown: not JSON, and never unpickled)"

_LONGEST_BODY = 16 * 2**20  # bytes; a small message may unpack into anything
_LONGEST_REPR = 2000
_SECRET = re.compile(r"token|secret|password|passwd|key|credential|auth", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Call:
    """A message's call. Arguments are reprs, cut after 2 000 characters; values under secret names are masked."""

    args: str
    kwargs: str
    content_type: str | None
    eta: str | None
    expires: str | None
    retries: int
    origin: str | None
    """Who published it, as Celery says: ``gen123@host``."""


def read(payload: str) -> Call:
    """Say what *payload* calls. Never fails: what cannot be read is said to be unreadable."""
    message = _mapping(_json(payload))
    headers = _mapping(message.get("headers"))
    args, kwargs = _arguments(message, headers)
    return Call(
        args=args,
        kwargs=kwargs,
        content_type=_text(message.get("content-type")),
        eta=_text(headers.get("eta")),
        expires=_text(headers.get("expires")),
        retries=retries if isinstance(retries := headers.get("retries"), int) else 0,
        origin=_text(headers.get("origin")),
    )


def masked(value: Any, *, name: str = "") -> Any:
    """Copy *value* with every entry under a secret-sounding name replaced by a mask."""
    if name and _SECRET.search(name):
        return MASK
    if isinstance(value, Mapping):
        return {key: masked(item, name=str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return type(value)(masked(item) for item in value)
    return value


def _arguments(message: Mapping[str, Any], headers: Mapping[str, Any]) -> tuple[str, str]:
    body = _json(_body(message))
    if isinstance(body, list) and len(body) == 3:  # protocol 2: args, kwargs, embedded callbacks
        return _repr(body[0]), _repr(body[1])
    if isinstance(body, Mapping) and "args" in body:  # protocol 1
        return _repr(body["args"]), _repr(body.get("kwargs") or {})
    return _literal(headers.get("argsrepr")), _literal(headers.get("kwargsrepr"))


def _body(message: Mapping[str, Any]) -> str:
    body = message.get("body")
    if not isinstance(body, str):
        return ""
    data = body.encode()
    try:
        if _mapping(message.get("properties")).get("body_encoding") == "base64":
            data = base64.b64decode(data)
        if _mapping(message.get("headers")).get("compression") == "application/x-gzip":
            data = zlib.decompressobj().decompress(data, _LONGEST_BODY)
        return data.decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError):
        return ""


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _literal(text: object) -> str:
    # A repr that is not a literal (objects, or cut short by Celery) cannot be masked, so it is not shown.
    if not isinstance(text, str):
        return UNREADABLE
    try:
        return _repr(ast.literal_eval(text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return UNREADABLE


def _repr(value: Any) -> str:
    text = repr(masked(value))
    return text if len(text) <= _LONGEST_REPR else f"{text[:_LONGEST_REPR]}… ({len(text)} characters)"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return None if value is None else str(value)
