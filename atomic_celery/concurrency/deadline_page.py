"""Memory that host and children share: until when each held message may be trusted.

The host writes, whenever a lease is renewed; the child that runs the message reads, as often as it likes, and needs
nobody's help to learn that its time is over. An entry belongs to one message from the moment it is sent to a child
until it has ended, whichever child that is, so a renewal needs to know nothing about children.
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Callable

from atomic_celery.clock import NEVER, Moment

LONG_AGO = Moment(0.0, 0.0)

NO_ENTRY = 0
"""The entry of whatever has no lease: it is never late."""

Held = tuple[int, int]  # message id, fence

_ENTRY_COUNT = 32 * 1024
_ENTRY = struct.Struct("=ddq")  # monotonic, wall, soft limit reached
_MOMENT = struct.Struct("=dd")
_SOFT = struct.Struct("=q")


class DeadlinePage:
    """One entry for each message that is with a child.

    Attributes:
        trusted_until: Asked for the moment known when an entry is opened; to be set by whoever keeps the leases.
    """

    def __init__(self) -> None:
        self.trusted_until: Callable[[int, int], Moment] = lambda _message_id, _fence: NEVER
        self._memory = mmap.mmap(-1, _ENTRY_COUNT * _ENTRY.size)
        self._free = list(range(_ENTRY_COUNT - 1, NO_ENTRY, -1))
        self._entries: dict[Held, int] = {}
        self._lock = threading.Lock()
        self._write(NO_ENTRY, NEVER)

    def open(self, held: Held | None) -> int:
        """Return an entry for a message that is about to be sent to a child; `close` it in the end."""
        with self._lock:
            entry = self._free.pop()
            self._write(entry, NEVER if held is None else LONG_AGO)
            if held is None:
                return entry
            self._entries[held] = entry
        self.set(*held, self.trusted_until(*held))
        return entry

    def close(self, entry: int, held: Held | None) -> None:
        """Give an entry back."""
        if entry == NO_ENTRY:
            return
        with self._lock:
            self._free.append(entry)
            if held is not None:
                del self._entries[held]

    def set(self, message_id: int, fence: int, until: Moment) -> None:
        """Trust a lease until *until*, if that is later. Safe from any thread; a no-op unless a child has it."""
        with self._lock:
            entry = self._entries.get((message_id, fence))
            if entry is not None and until.monotonic_s > self.until(entry).monotonic_s:
                _MOMENT.pack_into(self._memory, entry * _ENTRY.size, until.monotonic_s, until.wall_s)

    def revoke(self, message_id: int, fence: int) -> None:
        """Trust a lease no more. Safe from any thread; a child that runs the message ends itself."""
        with self._lock:
            entry = self._entries.get((message_id, fence))
            if entry is not None:
                _MOMENT.pack_into(self._memory, entry * _ENTRY.size, LONG_AGO.monotonic_s, LONG_AGO.wall_s)

    def mark_soft(self, entry: int) -> None:
        """Say that the soft time limit of the message with this entry is over."""
        _SOFT.pack_into(self._memory, entry * _ENTRY.size + _MOMENT.size, 1)

    def until(self, entry: int) -> Moment:
        """Return how long the message with this entry is trusted."""
        return Moment(*_MOMENT.unpack_from(self._memory, entry * _ENTRY.size))

    def soft(self, entry: int) -> bool:
        """Whether the soft time limit of the message with this entry is over."""
        return bool(_SOFT.unpack_from(self._memory, entry * _ENTRY.size + _MOMENT.size)[0])

    def _write(self, entry: int, until: Moment) -> None:
        _ENTRY.pack_into(self._memory, entry * _ENTRY.size, until.monotonic_s, until.wall_s, 0)
