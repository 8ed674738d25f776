"""Proof that a publication was committed, for a publisher whose answer was lost.

Each thread that publishes has a row, and each of its publications carries a fence that it writes there in the same
transaction. After a lost answer that row is left as it is, and whoever publishes the same once more shows the fence it
had: what was committed is not stored a second time, even when it has been run and is gone, and what is still under way
comes too late.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

_MOST_DOUBTFUL = 10_000

Key = tuple[str | None, ...]


class Receipt(NamedTuple):
    """What one publication writes down.

    Attributes:
        below: It is stored only if all that its publisher has stored had lower fences.
    """

    publisher: str
    fence: int
    below: int

    @property
    def is_second_try(self) -> bool:
        """Whether the same may have been stored before; then a refusal says that it was."""
        return self.below < self.fence


class Receipts:
    """The receipts of one process. Safe from any thread."""

    def __init__(self) -> None:
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._doubtful: OrderedDict[Key, Receipt] = OrderedDict()

    @contextmanager
    def signing(self, task_ids: Sequence[str | None]) -> Iterator[Receipt]:
        """Give the publication of these tasks its receipt, and remember it when it is unknown what became of it."""
        key = tuple(task_ids)
        receipt = self._next(key)
        try:
            yield receipt
        except BaseException:
            self.turn_over()
            self._doubt(key, receipt)
            raise

    def turn_over(self) -> None:
        """Begin with a new row in this thread: the old one is evidence, or somebody else's."""
        self._mine.last = None

    def _next(self, key: Key) -> Receipt:
        with self._lock:
            doubtful = self._doubtful.pop(key, None) if self._doubtful else None
        if doubtful is not None:
            return doubtful._replace(fence=doubtful.fence + 1)
        process, publisher, fence = getattr(self._mine, "last", None) or (0, "", 0)
        if process != os.getpid():  # the child of a fork remembers its parent's row, and must not write to it
            process, publisher, fence = os.getpid(), uuid.uuid4().hex, 0
        self._mine.last = process, publisher, fence + 1
        return Receipt(publisher, fence + 1, fence + 1)

    def _doubt(self, key: Key, receipt: Receipt) -> None:
        with self._lock:
            self._doubtful[key] = receipt
            if len(self._doubtful) > _MOST_DOUBTFUL:
                self._doubtful.popitem(last=False)
