"""Who is present: the requests of this worker that hold a message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from atomic_celery import clock

if TYPE_CHECKING:
    from atomic_celery.store.records import Held
    from atomic_celery.worker.requests import HeldRequest


class Roll:
    """The requests that hold a message. A message may come back, under a new fence, before its old request is gone.

    Attributes:
        emptied_s: When the last one left, by `clock.monotonic_s`; of interest while there is none.
    """

    def __init__(self) -> None:
        self._present: dict[Held, HeldRequest] = {}
        self.emptied_s = clock.monotonic_s()

    def __len__(self) -> int:
        return len(self._present)

    def __contains__(self, message_id: int) -> bool:
        return any(message_id == held[0] for held in self._present)

    def enter(self, request: HeldRequest) -> None:
        """Note that *request* has come."""
        assert request.held is not None
        self._present[request.held] = request

    def leave(self, request: HeldRequest) -> None:
        """Note that *request* holds its message no more."""
        if request.held is not None:
            self._present.pop(request.held, None)
            self.emptied_s = clock.monotonic_s()

    def find(self, held: Held) -> HeldRequest | None:
        """Return the request that holds a message under that very fence."""
        return self._present.get(held)

    def all(self) -> Iterable[HeldRequest]:
        """Return those present at this moment."""
        return list(self._present.values())
