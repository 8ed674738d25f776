"""The pipe that decides whether an errand was begun or taken back.

The host puts a token in for each errand whose bytes are completely written to the child; the child takes one out
before it begins its next errand. To take errands back, the host takes tokens out itself: each stands for one errand,
the last of those the child has. Neither side asks the other, so there is nothing to race with.
"""

from __future__ import annotations

import contextlib
import os


class TokenPipe:
    """One token for each errand that a child may begin."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        os.set_blocking(self._write_fd, False)

    def put(self, count: int) -> None:
        """Put *count* tokens in."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write_fd, bytes(count))

    def take(self, count: int) -> int:
        """Take at most *count* tokens out without waiting; return how many there were."""
        try:
            return len(os.read(self.read_fd, count))
        except BlockingIOError:
            return 0

    def host_fds(self) -> list[int]:
        """Return the descriptors that no child may keep open."""
        return [self._write_fd]

    def close(self) -> None:
        """Close both ends."""
        os.close(self.read_fd)
        os.close(self._write_fd)
