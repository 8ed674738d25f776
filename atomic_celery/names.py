"""Which names a database can hold: text, but for NUL and half a surrogate pair."""

from __future__ import annotations

from atomic_celery import errors


def is_utf8(text: str) -> bool:
    """Whether the text can be encoded: half a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_storable(name: str) -> bool:
    """Whether every database can hold *name* in a column."""
    return "\0" not in name and is_utf8(name)


def require(what: str, name: str | None) -> None:
    """Make sure that *name* can be stored.

    Args:
        what: Of what it is the name, for the error.

    Raises:
        UnstorableName: It cannot.
    """
    if name is not None and not is_storable(name):
        raise errors.UnstorableName(what, name)
