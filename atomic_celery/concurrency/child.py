"""What runs in a child process: take an errand, run it, tell the host, again."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import select
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from billiard.common import reset_signals
from billiard.compat import mem_rss
from billiard.einfo import ExceptionInfo
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import EX_OK, EX_RECYCLE, MaybeEncodingError
from celery.concurrency.prefork import process_destructor, process_initializer

from atomic_celery import clock, current, faults, process_tree
from atomic_celery.concurrency import bodies, wire
from atomic_celery.concurrency.deadline_page import NO_ENTRY
from atomic_celery.concurrency.vigil import Vigil
from atomic_celery.outbox import Entry, Outbox

if TYPE_CHECKING:
    from atomic_celery.concurrency.seat import Seat

logger = logging.getLogger(__name__)

EX_FAILURE = 1

# A signal that comes right before a child falls asleep is answered only when it wakes.
_LOOK_FOR_SIGNALS_EVERY_MS = 1000

_here: Child | None = None


def trusted() -> bool:
    """Whether the lease of the task that runs in this process may still be acted on. True outside a child."""
    return _here is None or _here.vigil.trusts(_here.vigil.entry)


def main(seat: Seat) -> None:
    """Live a child's whole life; leaves by `SystemExit`, or by the signal that ended it."""
    global _here
    _settle_in(seat)
    child = _here = Child(seat)
    code: int | str | None = EX_FAILURE
    try:
        code = child.serve()
    except SystemExit as leaving:
        code = leaving.code
    except Exception:
        logger.exception("A pool process ends after an error")
    finally:
        _farewell(code, child.ended_by)
    sys.exit(code)


def _settle_in(seat: Seat) -> None:
    """Become a child: a process group of its own, with Celery set up as in any pool."""
    os.setpgid(0, 0)
    seat.let_go()
    os.environ[process_tree.MARK] = seat.mark
    bodies.mark_all(seat.app)
    process_initializer(seat.app, seat.hostname)
    process_tree.keep_together()
    gc.freeze()  # what all children share is not worth looking through again and again


def _farewell(code: int | str | None, ended_by: int | None) -> None:
    try:
        process_destructor(os.getpid(), code if isinstance(code, int) else EX_FAILURE)
    finally:
        process_tree.kill_descendants()
        if ended_by is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            signal.signal(ended_by, signal.SIG_DFL)
            os.kill(os.getpid(), ended_by)


class Child:
    """A process that runs one errand after another until it is told, or has reason, to leave."""

    def __init__(self, seat: Seat) -> None:
        self._stream, self._tokens, self._page = seat.stream, seat.tokens, seat.page
        self._max_tasks, self._max_memory_kb = seat.max_tasks, seat.max_memory_kb
        self._stream.setblocking(True)
        self._frames = wire.FrameReader()
        self._errands: dict[int, wire.Frame] = {}
        self._reports: list[bytes] = [wire.header(wire.UP)]
        self._done_count = 0
        self._now_s = clock.monotonic_s()
        self._running = self._waiting = self._dismissed = False
        self._poll = select.poll()
        self._poll.register(self._stream, select.POLLIN)
        self._poll.register(self._tokens.read_fd, select.POLLIN)
        self.ended_by: int | None = None
        self.vigil = Vigil(self._page, seat.host_pid)

    def serve(self) -> int:
        """Run errands; return the exit code."""
        reset_signals(handler=self._on_termination)
        signal.signal(signal.SIGUSR1, self._on_soft_limit)
        self.vigil.start()
        while (errand := self._next()) is not None:
            if self.vigil.trusts(errand.entry):
                self._run(errand)
            else:
                self._reports.append(wire.header(wire.REFUSED, errand.ticket))
            if self._is_spent():
                self._reports.append(wire.header(wire.LEAVING))
                self._report()
                return EX_RECYCLE
        return EX_OK

    def _next(self) -> wire.Frame | None:
        """Return the next errand that is this child's to run; None when it has to leave."""
        while self.ended_by is not None or not self._tokens.take(1):
            if self._reports:
                self._report()
            if self.ended_by is not None:
                raise SystemExit
            if self._dismissed:
                return None
            self._wait()
            self._now_s = clock.monotonic_s()
        self._receive()  # what was taken back before this token was given must be known before an errand is chosen
        return self._errands.pop(next(iter(self._errands)))

    def _wait(self) -> None:
        """Sleep until there is a token or a frame."""
        self._waiting = True
        if self.ended_by is not None:
            raise SystemExit
        ready = self._poll.poll(_LOOK_FOR_SIGNALS_EVERY_MS)
        self._waiting = False
        if any(fd == self._stream.fileno() for fd, _ in ready):
            self._receive()

    def _receive(self) -> None:
        """Take in all frames that have arrived."""
        while True:
            try:
                data = self._stream.recv(wire.READ_SIZE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not data:
                raise SystemExit(EX_FAILURE)  # there is no host any more
            for frame in self._frames.feed(data):
                if frame.kind == wire.RUN:
                    self._errands[frame.ticket] = frame
                elif frame.kind == wire.DROP:
                    self._errands.pop(frame.ticket, None)
                elif frame.kind == wire.STOP:
                    self._dismissed = True
            if len(data) < wire.READ_SIZE:
                return

    def _run(self, errand: wire.Frame) -> None:
        """Run one errand. What it did is reported with the beginning of the next one, or before waiting for one."""
        self._reports.append(wire.header(wire.BEGAN, errand.ticket, at_s=self._now_s))
        self._report()
        faults.reach("child.began")
        payload = self._outcome(errand)
        faults.reach("child.ended")
        self._now_s = clock.monotonic_s()
        self._reports += (
            wire.header(wire.ENDED, errand.ticket, at_s=self._now_s, length=len(payload)),
            payload,
        )
        self._done_count += 1

    def _outcome(self, errand: wire.Frame) -> bytes:
        """Return what the host is to be told: whether there is a value, the value or failure, and the outbox.

        `SystemExit`, `KeyboardInterrupt` and `MemoryError` are no outcome: the process ends, and the host learns
        that it lost a child.
        """
        outbox: Outbox | None = None
        succeeded = False
        value: Any = None
        try:
            target, args, kwargs, lease, journal = pickle.loads(errand.payload)
            message = _message(lease, args, journal)
            outbox = message.outbox if message is not None else None
            with current.holding(message):
                self.vigil.entry = errand.entry
                self._running = True
                self._heed_what_came_before()
                value = target(*args, **kwargs)
                self._running = False
            succeeded = True
        except (SystemExit, KeyboardInterrupt):
            raise
        except MemoryError:
            logger.exception("A task needs more memory than there is; its process ends")
            raise SystemExit(EX_FAILURE) from None
        except BaseException:
            if self.ended_by is not None:
                raise SystemExit from None  # its clean-up failed; it has no outcome all the same
            value = ExceptionInfo()
        finally:
            self._running = False
            self.vigil.entry = NO_ENTRY
        if outbox is None:
            return _pickled(succeeded, value, None)
        failed = not succeeded or value[0]
        return _pickled(succeeded, value, outbox.seal(succeeded=not failed))

    def _report(self) -> None:
        """Send what is to be told, in one write."""
        self._stream.sendall(b"".join(self._reports))
        self._reports.clear()

    def _is_spent(self) -> bool:
        if self._max_tasks is not None and self._done_count >= self._max_tasks:
            return True
        if self._max_memory_kb is None or (used_kb := mem_rss()) <= self._max_memory_kb:
            return False
        logger.warning(
            "child process exiting after exceeding memory limit (%sKiB / %sKiB)",
            used_kb,
            self._max_memory_kb,
        )
        return True

    def _on_termination(self, signum: int, _frame: FrameType | None) -> None:
        """Unwind the running task, so that it can clean up; a second signal ends the process at once."""
        signal.signal(signum, signal.SIG_DFL)
        self.ended_by = signum
        if self._running or self._waiting:
            self._running = self._waiting = False
            raise SystemExit

    def _heed_what_came_before(self) -> None:
        """Act on signals that found no task to interrupt, because this one had not quite begun."""
        if self.ended_by is not None:
            raise SystemExit
        if self._page.soft(self.vigil.entry):
            raise SoftTimeLimitExceeded

    def _on_soft_limit(self, _signum: int, _frame: FrameType | None) -> None:
        """Interrupt the running task, if it is the one whose time is over."""
        if self._running and self._page.soft(self.vigil.entry):
            raise SoftTimeLimitExceeded


def _message(lease: tuple[int, int] | None, args: Sequence[Any], journal: str | None) -> current.Running | None:
    """Return what says which message an errand executes; its host has made sure that these are a tracer's arguments."""
    if lease is None:
        return None
    outbox = None if journal is None else Outbox(journal)
    if outbox is not None:
        outbox.own_ids.add(args[1])
    return current.Running(*lease, args[1], outbox)


def _pickled(succeeded: bool, value: Any, entries: list[Entry] | None) -> bytes:
    try:
        return pickle.dumps((succeeded, value, entries), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        try:
            raise MaybeEncodingError(error, value)
        except MaybeEncodingError:
            return pickle.dumps((False, ExceptionInfo(), entries), protocol=pickle.HIGHEST_PROTOCOL)
