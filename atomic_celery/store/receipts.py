"""Proof that a publication was committed, for a publisher whose answer was lost.

A publication has a row to itself while it lasts, and carries a fence that it writes there in the same transaction.
After a lost answer that row is left as it is, and whoever publishes the same once more shows the fence it had: what
was committed is not stored a second time, even when it has been run and is gone, and what is still under way comes too
late.
"""

from __future__ import annotations

import os
import uuid
from collections import OrderedDict, deque
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
    """The receipts of one process: as many rows as have ever been published to at a time.

    Safe from any thread and any signal handler, which a lock would not be.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._spare: deque[Receipt] = deque()
        self._doubtful: OrderedDict[Key, Receipt] = OrderedDict()

    @contextmanager
    def signing(self, task_ids: Sequence[str | None]) -> Iterator[Receipt]:
        """Give the publication of these tasks its receipt, and remember it when it is unknown what became of it."""
        key = tuple(task_ids)
        receipt = self._next(key)
        try:
            yield receipt
        except BaseException:
            self._doubt(key, receipt)
            raise

    def give_back(self, receipt: Receipt) -> None:
        """Let the next publication have the row of one whose answer came."""
        self._spare.append(receipt)

    def _next(self, key: Key) -> Receipt:
        doubtful = self._doubtful.pop(key, None)
        if doubtful is not None:
            return doubtful._replace(fence=doubtful.fence + 1)
        if self._process != os.getpid():  # the child of a fork remembers its parent's rows, and must not write to them
            self._process, self._spare = os.getpid(), deque()
        try:
            publisher, fence, _ = self._spare.pop()
        except IndexError:
            publisher, fence = uuid.uuid4().hex, 0
        return Receipt(publisher, fence + 1, fence + 1)

    def _doubt(self, key: Key, receipt: Receipt) -> None:
        self._doubtful[key] = receipt
        if len(self._doubtful) > _MOST_DOUBTFUL:
            self._doubtful.popitem(last=False)
