"""How many tasks ended, and when: counters that worker processes share as small files.

Each process that runs tasks maps one file of its own and adds to it, so that counting costs
the worker no system call and the reader sees it at once.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

_FORMAT = struct.Struct("qqq")  # ended, first_ns, last_ns


class Counter:
    """This process's own count of ended tasks."""

    def __init__(self, directory: Path) -> None:
        path = directory / f"new-tally-{os.getpid()}"
        path.write_bytes(bytes(_FORMAT.size))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _FORMAT.size)
        path.rename(directory / f"tally-{os.getpid()}")  # whoever reads it finds all of it
        self._ended = 0
        self._first_ns = 0

    def add(self) -> None:
        """Count one ended task."""
        now_ns = time.monotonic_ns()
        self._ended += 1
        self._first_ns = self._first_ns or now_ns
        _FORMAT.pack_into(self._page, 0, self._ended, self._first_ns, now_ns)


@dataclass(frozen=True, slots=True)
class Tally:
    """What all counters in a directory say together."""

    ended: int
    first_ns: int
    last_ns: int

    @property
    def rate(self) -> float:
        """Tasks a second from the first that ended to the last."""
        return (self.ended - 1) / max(self.last_ns - self.first_ns, 1) * 1e9


def read(directory: Path) -> Tally:
    """Add up the counters in *directory*."""
    pages = [_FORMAT.unpack(path.read_bytes()) for path in directory.glob("tally-*")]
    counted = [page for page in pages if page[0]]
    return Tally(
        ended=sum(ended for ended, _, _ in counted),
        first_ns=min((first for _, first, _ in counted), default=0),
        last_ns=max((last for _, _, last in counted), default=0),
    )
