"""What Celery's serializers produce, as text that a column of a database takes."""

from __future__ import annotations

import base64

BINARY = "base64:"
"""How text begins that stands for bytes; no serializer's begins so."""


def to_text(encoded: str | bytes) -> str:
    """Return *encoded* itself if it is text, else as base64."""
    if isinstance(encoded, str) and "\x00" not in encoded:  # which PostgreSQL does not take
        return encoded
    data = encoded.encode() if isinstance(encoded, str) else encoded
    return BINARY + base64.b64encode(data).decode()


def from_text(text: str) -> str | bytes:
    """Return what `to_text` was given; text that it encoded as bytes."""
    return base64.b64decode(text[len(BINARY) :]) if text.startswith(BINARY) else text
