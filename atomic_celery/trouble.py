"""How long one waits on a database in trouble, and what one says then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from atomic_celery import clock, errors

if TYPE_CHECKING:
    from atomic_celery.store.store import Store

READ_LIMIT_S = 5.0
"""How long a database may take to show everything."""
WRITE_LIMIT_S = 2.0
"""How long it may take to commit a write that changes nothing."""

Trouble = Literal["degraded", "unknown"]
_LONG = 0.6  # of the time allowed: a driver rounds its own timeouts down to whole seconds
_NO_ANSWER = (
    "the database accepts connections and does not answer; look at the server's load, its disk, and sessions that "
    "wait for locks (pg_stat_activity), or at a proxy between here and there"
)
_TOO_BUSY = (
    "look for sessions that hold locks (pg_locks), a connection table that is full (max_connections), "
    "or, with SQLite, a process that keeps a transaction open"
)
_NOT_COMMITTED = "a write that changes nothing did not commit"
_NO_WRITE = (
    "reads work and writes do not commit; look for a session that holds locks (pg_locks), a full disk, "
    "a read-only standby, or a synchronous standby that is gone"
)
_NO_CONNECTION = (
    "check that the server runs, the URL in broker_url, the network between here and there, and the credentials"
)


class StoreTrouble(errors.StoreError):
    """The shared store cannot be relied on now: *degraded* answers badly, *unknown* cannot be asked."""

    transient = True

    def __init__(self, trouble: Trouble, why: str, hint: str) -> None:
        super().__init__(f"shared store {trouble}: {why}; {hint}")
        self.trouble, self.why, self.hint = trouble, why, hint

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.trouble, self.why, self.hint)

    @property
    def headline(self) -> str:
        """The words that monitoring looks for."""
        return f"shared store {self.trouble}"


@contextmanager
def bounded(store: Store, limit_s: float | None = None, *, hint: str = _NO_ANSWER) -> Iterator[None]:
    """Let what is inside ask the store for a limited time.

    Args:
        store: Whom it asks.
        limit_s: For how long; `READ_LIMIT_S` if nothing is said.
        hint: What to try when there is no answer in time.

    Raises:
        StoreTrouble: It could not be reached (unknown), did not answer in time or was too busy (degraded).
    """
    began_s, limit_s = clock.monotonic_s(), READ_LIMIT_S if limit_s is None else limit_s
    try:
        with store.deadline(limit_s):
            yield
    except errors.StoreBusy as error:
        raise StoreTrouble("degraded", str(error), _TOO_BUSY) from error
    except errors.SecretUnusable as error:
        raise StoreTrouble("unknown", error.what, error.fix) from error
    except errors.StoreUnavailable as error:
        # A hung server and a refusing one end in the same error; what tells them apart is the waiting.
        if clock.monotonic_s() - began_s >= _LONG * min(limit_s, store.settings.connect_timeout_s):
            raise StoreTrouble("degraded", str(error), hint) from error
        raise StoreTrouble("unknown", str(error), _NO_CONNECTION) from error


def probe_write(store: Store) -> None:
    """Commit a write that changes nothing.

    Raises:
        StoreTrouble: It failed, or was not allowed, or took longer than `WRITE_LIMIT_S`.
    """
    try:
        with store.deadline(WRITE_LIMIT_S):
            store.reads.probe_write()
    except errors.SchemaMismatch:
        raise
    except errors.StoreForbidden as error:
        raise StoreTrouble("degraded", f"{_NOT_COMMITTED}: {error.what}", error.fix) from error
    except errors.StoreError as error:
        raise StoreTrouble("degraded", f"{_NOT_COMMITTED}: {error}", _NO_WRITE) from error
