"""Which file a SQLite database is: its name may come to mean another one while processes use the one that had it.

SQLite does not notice: it goes on with the file that it has open, and nobody else ever sees what is written there.
"""

from __future__ import annotations

import math
import os

from atomic_celery import clock, errors

LOOK_EVERY_S = 1.0


class DatabaseFile:
    """The file that a process found first, and stays with: its leases and fences are of that file, and of no other."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._first: tuple[int, int] | None = None
        self._look_again_at_s = -math.inf

    def note(self) -> None:
        """Take note that it was opened."""
        if self._first is None:
            self._first = self._there()

    def require_now_and_then(self) -> None:
        """Do what `require` does, if that was a while ago. Costs a look at the clock otherwise."""
        now_s = clock.monotonic_s()
        if now_s >= self._look_again_at_s:
            self.require()
            self._look_again_at_s = now_s + LOOK_EVERY_S

    def require(self) -> None:
        """Require that the name still means the file that was opened first, if any was.

        Raises:
            StoreUnavailable: It means none, or another one.
        """
        if self._first is None or (there := self._there()) == self._first:
            return
        if there is None:
            raise errors.StoreUnavailable(
                f"the database file {self._path} was deleted or moved while it was in use: put the same file back, "
                "or restart every process that used it"
            )
        raise errors.StoreUnavailable(
            f"the database file {self._path} was replaced by another one while it was in use: put the same file back, "
            "or restart every process that used it"
        )

    def _there(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino
