"""Ends what a host leaves behind that dies without a word: its children, and everything they started.

A process of its own, told of every child by a pipe that only the host writes to. The system closes that pipe when the
host is dead, whatever killed it. Until then its children stand where they can be found, with all that is below them.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import struct
import warnings
from weakref import WeakSet

from atomic_celery import clock, process_tree

logger = logging.getLogger(__name__)

_NEWS = struct.Struct("=i")  # the process id of a child that was born; negative: of one that was buried
_FAREWELL = 0
_DIES_WITHIN_S, _LOOK_EVERY_S = 2.0, 0.005
_MOST_FILES = 1 << 20
_DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

_undertakers: WeakSet[Undertaker] = WeakSet()


class Undertaker:
    """The host's end of it. Begins with the first child, and again when somebody has killed it."""

    def __init__(self) -> None:
        self._living: set[int] = set()
        self._pid = self._write_fd = -1
        _undertakers.add(self)

    def born(self, pid: int) -> None:
        """Take note of a child."""
        self._living.add(pid)
        self._tell(pid)

    def buried(self, pid: int) -> None:
        """Take note that a child is dead, and was asked for its exit code: its number may be another's by now."""
        self._living.discard(pid)
        self._tell(-pid)

    def close(self) -> None:
        """End it; what lives still ends with it."""
        if self._pid > 0:
            with contextlib.suppress(OSError):
                os.write(self._write_fd, _NEWS.pack(_FAREWELL))
        self.let_go()
        if self._pid > 0:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = -1

    def let_go(self) -> None:
        """Close the pipe, in whichever process this is."""
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1

    def _tell(self, news: int) -> None:
        try:
            os.write(self._write_fd, _NEWS.pack(news))
        except OSError:  # it is dead, or not there yet
            self.close()
            try:
                self._begin()
                os.write(self._write_fd, b"".join(map(_NEWS.pack, self._living)))
            except OSError as error:
                logger.error("Cannot start the process that ends the children of a dead host: %s", error)

    def _begin(self) -> None:
        read_fd, self._write_fd = os.pipe()
        host_pid = os.getpid()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # as for the children: it uses no lock
                self._pid = os.fork()
            if self._pid == 0:
                _serve(read_fd, host_pid)
        finally:
            os.close(read_fd)


def _serve(read_fd: int, host_pid: int) -> None:
    """Keep the register until the host is dead, and then end who is in it; never returns."""
    try:
        gc.disable()
        os.setsid()
        for signum in _DEAF_TO:
            signal.signal(signum, signal.SIG_IGN)
        os.closerange(0, read_fd)  # a pipe that a dead host's reader waits on, or a socket, would seem to be alive
        os.closerange(read_fd + 1, _MOST_FILES)
        living, news = set[int](), _FAREWELL
        while data := os.read(read_fd, 4096 * _NEWS.size):
            for (news,) in _NEWS.iter_unpack(data):
                (living.add if news > 0 else living.discard)(abs(news))
        if news != _FAREWELL:
            _await_end_of(host_pid)
        for pid in living:
            process_tree.kill(pid)
    finally:
        os._exit(0)


def _await_end_of(host_pid: int) -> None:
    """Wait until the system has ended a process whose files it has closed.

    What stands still in that very moment it would send a SIGHUP, and let go on.
    """
    give_up_at_s = clock.monotonic_s() + _DIES_WITHIN_S
    while os.getppid() == host_pid and clock.monotonic_s() < give_up_at_s:
        clock.pause(_LOOK_EVERY_S)


def _let_go_in_child() -> None:
    for undertaker in list(_undertakers):
        undertaker.let_go()
        undertaker._pid = -1


os.register_at_fork(after_in_child=_let_go_in_child)
