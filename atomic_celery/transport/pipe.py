"""How the claimer's thread tells an event loop that something arrived."""

from __future__ import annotations

import contextlib
import os


class Pipe:
    """A pipe to oneself: readable from `signal` until `clear`."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._signalled = False

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._reader

    def signal(self) -> None:
        """Make it readable. Safe from any thread."""
        if not self._signalled:
            self._signalled = True
            with contextlib.suppress(OSError):  # closed: nobody waits
                os.write(self._writer, b"!")

    def clear(self) -> None:
        """Make it unreadable, before looking at what arrived."""
        with contextlib.suppress(OSError):
            os.read(self._reader, 4096)
        # Only now: a signal in between would be read away, and every later one taken for sent already.
        self._signalled = False

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self._reader)
        os.close(self._writer)
