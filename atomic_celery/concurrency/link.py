"""The host's end of one child."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections import deque
from typing import TYPE_CHECKING

from atomic_celery.concurrency import wire
from atomic_celery.concurrency.errand import State
from atomic_celery.concurrency.tokens import TokenPipe

if TYPE_CHECKING:
    from atomic_celery.concurrency.errand import Errand
    from atomic_celery.concurrency.watch import Entry


class Link:
    """One child as the host sees it: its process, the stream to it, and what it was given.

    Attributes:
        mark: What the programs that the child starts carry in their environment.
        queue: Errands it was given and is not known to have begun, oldest first.
        running: The errand it is known to run.
        up: It has said that it is ready.
        leaving: It gets nothing more, because it is about to end.
        held: It gets nothing until its running errand has ended, because that was sent a signal.
        room: How many more errands it may be given in its life; None for no limit.
        closed: It has closed its end of the stream.
        patience: Kills it if it is not up in time.
    """

    def __init__(self, slot: int, max_tasks: int | None) -> None:
        self.slot = slot
        self.stream, self.child_stream = socket.socketpair()
        self.stream.setblocking(False)
        self.write_fd = os.dup(self.stream.fileno())  # Celery's hub knows a descriptor as reader or as writer
        self.tokens = TokenPipe()
        self.pid, self.mark = 0, uuid.uuid4().hex
        self.exit_fd: int | None = None
        self.name = ""
        self.patience: Entry
        self.queue: deque[Errand] = deque()
        self.running: Errand | None = None
        self.up = self.leaving = self.held = self.closed = False
        self.room = max_tasks
        self._frames = wire.FrameReader()
        self._reading = False
        self._unsent: list[bytes] = []
        self._sending = memoryview(b"")
        self._written = self._sent = 0
        self._ends: deque[int] = deque()  # where in the stream each errand without a token ends

    @property
    def load(self) -> int:
        """How many errands it has."""
        return len(self.queue) + (self.running is not None)

    @property
    def open(self) -> bool:
        """Whether it may be given errands."""
        return self.up and not (self.leaving or self.held or self.room == 0)

    def born(self, pid: int, name: str) -> None:
        """Take note of the process, in the host, right after the fork."""
        self.pid, self.name = pid, name
        self.child_stream.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # as the child does itself; whoever comes first
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self.exit_fd = os.pidfd_open(pid)

    def give(self, errand: Errand, entry: int, now_s: float) -> None:
        """Put *errand* at the end of its queue; `flush` sends it."""
        errand.link, errand.entry, errand.given_s, errand.state = self, entry, now_s, State.SENT
        self.queue.append(errand)
        self._write(wire.header(wire.RUN, errand.ticket, entry=entry, length=len(errand.payload)))
        self._write(errand.payload)
        self._ends.append(self._written)
        if self.room is not None:
            self.room -= 1

    def recall(self) -> list[Errand]:
        """Take back every errand it has not begun, oldest first. What stays in the queue it has begun."""
        tokenless = len(self._ends)
        self._ends.clear()
        tokened = len(self.queue) - tokenless
        count = tokenless + (self.tokens.take(tokened) if tokened else 0)
        errands = [self.queue.pop() for _ in range(count)]
        errands.reverse()
        for errand in errands:
            errand.link, errand.state = None, State.WAITING
            self._write(wire.header(wire.DROP, errand.ticket))
        if self.room is not None:
            self.room += len(errands)
        return errands

    def dismiss(self) -> None:
        """Tell it to leave when it has ended what it runs."""
        if not self.leaving:
            self.leaving = True
            self._write(wire.header(wire.STOP))

    def flush(self) -> bool:
        """Send what the stream takes now, and a token for each errand that is sent whole; True when nothing is left."""
        while self._sending or self._unsent:
            if not self._sending:
                self._sending = memoryview(b"".join(self._unsent))
                self._unsent.clear()
            try:
                count = self.stream.send(self._sending)
            except BlockingIOError:
                return False
            except OSError:  # the child is gone, which its exit tells
                self._sending = memoryview(b"")
                self._unsent.clear()
                return True
            self._sending = self._sending[count:]
            self._sent += count
            self._put_tokens()
        return True

    def _put_tokens(self) -> None:
        count = 0
        while self._ends and self._ends[0] <= self._sent:
            self._ends.popleft()
            count += 1
        if count:
            self.tokens.put(count)

    def read(self) -> list[wire.Frame]:
        """Return the frames that have arrived, without waiting; sets `closed` when there will be no more."""
        if self._reading:  # a signal handler that interrupted this very method
            return []
        self._reading = True
        try:
            return self._frames.feed(self._receive())
        finally:
            self._reading = False

    def read_rest(self) -> list[wire.Frame]:
        """Return what a dead child has left in the stream."""
        frames = []
        while data := self._receive():
            frames += self._frames.feed(data)
        return frames

    def _receive(self) -> bytes:
        try:
            data = self.stream.recv(wire.READ_SIZE)
        except BlockingIOError:
            return b""
        except ConnectionError:
            data = b""
        self.closed = not data
        return data

    def become_child(self) -> None:
        """Close the host's ends, in the child itself."""
        self.stream.close()
        os.close(self.write_fd)
        for fd in self.tokens.host_fds():
            os.close(fd)

    def close(self) -> None:
        """Close all descriptors."""
        self.stream.close()
        self.child_stream.close()
        os.close(self.write_fd)
        self.tokens.close()
        if self.exit_fd is not None:
            os.close(self.exit_fd)

    def _write(self, data: bytes) -> None:
        self._unsent.append(data)
        self._written += len(data)
