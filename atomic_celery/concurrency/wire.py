"""The frames that host and child exchange over their stream.

A frame is a fixed header and a payload: kind, deadline entry, ticket, moment, length. Each side collects what it has to
say and writes it at once.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

# host → child
RUN, DROP, STOP = 1, 2, 3
# child → host
UP, BEGAN, ENDED, REFUSED, LEAVING = 11, 12, 13, 14, 15

READ_SIZE = 256 * 1024

_HEADER = struct.Struct("<BIQdQ")


class Frame(NamedTuple):
    """One message between host and child."""

    kind: int
    entry: int
    ticket: int
    at_s: float
    payload: bytes


def header(kind: int, ticket: int = 0, *, entry: int = 0, at_s: float = 0.0, length: int = 0) -> bytes:
    """Return what precedes a payload of *length* bytes; a whole frame when that is 0."""
    return _HEADER.pack(kind, entry, ticket, at_s, length)


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self._wanted = _HEADER.size

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that *data* completes, in order; keep the rest for the next call."""
        if self._partial:
            self._partial += data
            if len(self._partial) < self._wanted:
                return []
            data, self._partial = bytes(self._partial), bytearray()
        frames, at = self._cut(data)
        if at < len(data):
            self._partial += memoryview(data)[at:]
        return frames

    def _cut(self, data: bytes) -> tuple[list[Frame], int]:
        frames: list[Frame] = []
        at, end, size = 0, len(data), _HEADER.size
        unpack = _HEADER.unpack_from
        while (start := at + size) <= end:
            kind, entry, ticket, at_s, length = unpack(data, at)
            if start + length > end:
                self._wanted = size + length
                return frames, at
            at = start + length
            frames.append(Frame(kind, entry, ticket, at_s, data[start:at]))
        self._wanted = size
        return frames, at
