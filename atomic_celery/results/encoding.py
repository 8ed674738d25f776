"""What Celery's serializers produce, as text that a column of a database takes."""

from __future__ import annotations

import base64

from celery.exceptions import BackendStoreError

LARGEST = 128 * 1024 * 1024
"""How many characters are stored at most."""

BINARY = "base64:"
"""How text begins that stands for bytes; no serializer's begins so."""


def to_text(encoded: str | bytes) -> str:
    """Return *encoded* itself if it is text, else as base64.

    Raises:
        BackendStoreError: It is larger than anybody should store.
    """
    text = encoded if isinstance(encoded, str) and "\x00" not in encoded else None  # which PostgreSQL does not take
    if text is None:
        data = encoded.encode() if isinstance(encoded, str) else encoded
        text = BINARY + base64.b64encode(data).decode()
    if len(text) > LARGEST:
        raise BackendStoreError(f"a result of {len(text)} characters is too large; at most {LARGEST} are stored")
    return text


def from_text(text: str) -> str | bytes:
    """Return what `to_text` was given; text that it encoded as bytes."""
    return base64.b64decode(text[len(BINARY) :]) if text.startswith(BINARY) else text
