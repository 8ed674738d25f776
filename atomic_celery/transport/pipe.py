"""How the claimer's thread tells an event loop that something arrived."""

from __future__ import annotations

import contextlib
import os
import threading


class Pipe:
    """A pipe to oneself: readable from `signal` until `clear`."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._signalled = self._closed = False
        # Not to write to a descriptor that was closed, and is another file's by now.
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._reader

    def signal(self) -> None:
        """Make it readable. Safe from any thread, and after `close`."""
        with self._lock:
            if not self._signalled and not self._closed:
                self._signalled = True
                os.write(self._writer, b"!")

    def clear(self) -> None:
        """Make it unreadable, before looking at what arrived."""
        with self._lock:
            self._signalled = False
            with contextlib.suppress(BlockingIOError):
                os.read(self._reader, 4096)

    def close(self) -> None:
        """Give the descriptors back."""
        with self._lock:
            self._closed = True
            os.close(self._reader)
            os.close(self._writer)
