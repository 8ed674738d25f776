"""What a stored message would call, in words that are safe to show: nothing is unpickled, secrets are masked."""

from __future__ import annotations

import ast
import base64
import binascii
import functools
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MASK = "********"
UNREADABLE = "(not shown: not JSON, and never unpickled)"

_LONGEST_BODY = 16 * 2**20  # bytes; a small message may unpack into anything
_LONGEST_REPR = 2000
_SECRET = "token|secret|password|passwd|key|credential|auth"
_URL_PASSWORD = re.compile(r"((?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/]*(?=@)", re.IGNORECASE)


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


def read(payload: str, mask: Sequence[str] = ()) -> Call:
    """Say what *payload* calls. Never fails: what cannot be read is said to be unreadable.

    Args:
        payload: A message as it is stored.
        mask: Parts of more names whose values are secret.
    """
    message = _mapping(_json(payload))
    headers = _mapping(message.get("headers"))
    args, kwargs = _arguments(message, headers, _secret(tuple(mask)))
    return Call(
        args=args,
        kwargs=kwargs,
        content_type=_text(message.get("content-type")),
        eta=_text(headers.get("eta")),
        expires=_text(headers.get("expires")),
        retries=retries if isinstance(retries := headers.get("retries"), int) else 0,
        origin=_text(headers.get("origin")),
    )


def masked(value: Any, mask: Sequence[str] = ()) -> Any:
    """Copy *value* with every entry under a secret-sounding name, and every password in a URL, replaced by a mask."""
    return _masked(value, _secret(tuple(mask)))


def without_passwords(text: str) -> str:
    """Return *text* with the passwords of URLs in it replaced by a mask."""
    return _URL_PASSWORD.sub(rf"\1{MASK}", text) if "://" in text else text


@functools.lru_cache(maxsize=8)
def _secret(mask: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join([_SECRET, *map(re.escape, mask)]), re.IGNORECASE)


def _masked(value: Any, secret: re.Pattern[str], *, name: str = "") -> Any:
    if name and secret.search(name):
        return MASK
    if isinstance(value, Mapping):
        return {key: _masked(item, secret, name=str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return type(value)(_masked(item, secret) for item in value)
    return without_passwords(value) if isinstance(value, str) else value


def _arguments(message: Mapping[str, Any], headers: Mapping[str, Any], secret: re.Pattern[str]) -> tuple[str, str]:
    body = _json(_body(message))
    if isinstance(body, list) and len(body) == 3:  # protocol 2: args, kwargs, embedded callbacks
        return _repr(body[0], secret), _repr(body[1], secret)
    if isinstance(body, Mapping) and "args" in body:  # protocol 1
        return _repr(body["args"], secret), _repr(body.get("kwargs") or {}, secret)
    return _literal(headers.get("argsrepr"), secret), _literal(headers.get("kwargsrepr"), secret)


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


def _literal(text: object, secret: re.Pattern[str]) -> str:
    # A repr that is not a literal (objects, or cut short by Celery) cannot be masked, so it is not shown.
    if not isinstance(text, str):
        return UNREADABLE
    try:
        return _repr(ast.literal_eval(text), secret)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return UNREADABLE


def _repr(value: Any, secret: re.Pattern[str]) -> str:
    text = repr(_masked(value, secret))
    return text if len(text) <= _LONGEST_REPR else f"{text[:_LONGEST_REPR]}… ({len(text)} characters)"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return None if value is None else str(value)
