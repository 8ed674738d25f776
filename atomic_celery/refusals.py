"""Which messages were not stored because their key is taken: publishing says so where somebody asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from atomic_celery.store import NewMessage, Store

Refused = list[tuple[Store, NewMessage]]

_noted: ContextVar[Refused | None] = ContextVar("atomic_refusals", default=None)


@contextmanager
def noting() -> Iterator[Refused]:
    """Collect what is refused inside; who collects around it hears of it too."""
    noted: Refused = []
    outer = _noted.get()
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)
        if outer is not None:
            outer += noted


def publish(store: Store, new: Sequence[NewMessage]) -> None:
    """Store messages, and note those whose key is taken."""
    ids = store.messages.publish(new)
    noted = _noted.get()
    if noted is not None:
        pairs = zip(new, ids, strict=True)
        noted += [(store, message) for message, stored in pairs if stored is None and message.unique_key is not None]


def holders(refused: Refused) -> dict[str, str]:
    """Return which task holds the key of each refused one, by task ids; none where it has ended meanwhile."""
    found: dict[str, str] = {}
    for store in {id(store): store for store, _ in refused}.values():
        mine = [message for each, message in refused if each is store]
        by_key = store.limits.key_holders(sorted({message.unique_key or "" for message in mine}))
        found |= {
            message.task_id: by_key[message.unique_key]
            for message in mine
            if message.task_id and message.unique_key in by_key
        }
    return found
