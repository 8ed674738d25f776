"""Which names a database can hold: text of a bounded length, but for NUL and half a surrogate pair."""

from __future__ import annotations

from atomic_celery import errors

MOST_BYTES = 512
"""How long a name may be as UTF-8: an index of PostgreSQL's holds an exchange, a key and its pattern together."""


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
    if name is None:
        return
    if not is_storable(name):
        reason = "contains NUL or half of a surrogate pair, which databases do not store: leave it out"
        raise errors.UnstorableName(what, name, reason)
    if len(name.encode()) > MOST_BYTES:
        raise errors.UnstorableName(what, name, f"is longer than {MOST_BYTES} bytes: choose a shorter one")
