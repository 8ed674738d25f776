"""Storage: the database, its tables, and the protocol's statements, one method each."""

from __future__ import annotations

from atomic_celery.store.records import (
    Claimed,
    Crashed,
    Held,
    Holder,
    Lane,
    NewMessage,
    Renewal,
    Settlement,
    Turn,
)
from atomic_celery.store.store import Store, open_store
from atomic_celery.store.urls import StoreUrl

__all__ = [
    "Claimed",
    "Crashed",
    "Held",
    "Holder",
    "Lane",
    "NewMessage",
    "Renewal",
    "Settlement",
    "Store",
    "StoreUrl",
    "Turn",
    "open_store",
]
