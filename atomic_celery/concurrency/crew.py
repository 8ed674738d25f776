"""The children of a pool: forked, listened to, replaced when they end."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import random
import signal
import sys
import warnings
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from billiard.common import human_status
from billiard.context import ForkContext
from billiard.pool import EX_OK, EX_RECYCLE
from celery import signals

from atomic_celery import clock, process_tree
from atomic_celery.concurrency import child, wire
from atomic_celery.concurrency.deadline_page import DeadlinePage
from atomic_celery.concurrency.errand import Errand
from atomic_celery.concurrency.link import Link
from atomic_celery.concurrency.seat import Seat
from atomic_celery.concurrency.undertaker import Undertaker
from atomic_celery.concurrency.watch import Watch

logger = logging.getLogger(__name__)

UP_WITHIN_S = 60.0
FAREWELL_S = 10.0
LONGEST_DELAY_S = 5.0

_ORDERLY = (EX_OK, EX_RECYCLE)  # how a child ends that has tidied up behind itself


@dataclass(frozen=True, slots=True)
class Rules:
    """What a child is to be like."""

    app: Any
    hostname: str
    max_tasks: int | None
    max_memory_kb: int | None


class Listener(Protocol):
    """Who is told what children do."""

    def on_frame(self, link: Link, frame: wire.Frame) -> None:
        """Act on what a child has said."""

    def on_turn(self) -> None:
        """Act after everything that was there to be read."""

    def on_gone(self, link: Link, running: Errand | None, unbegun: list[Errand], exitcode: int) -> None:
        """Act on the end of a child that had these errands."""


class Crew:
    """As many children as there should be.

    Attributes:
        size: How many that are.
        growing: False once no child is to be replaced any more.
    """

    def __init__(self, size: int, rules: Rules, page: DeadlinePage, watch: Watch, listener: Listener) -> None:
        self.size, self.growing = size, True
        self.up_within_s = UP_WITHIN_S
        self.links: list[Link] = []
        self._rules, self._page, self._watch, self._listener = rules, page, watch, listener
        self._said: deque[tuple[Link, wire.Frame]] = deque()
        self._numbers = itertools.count(1)
        self._undertaker = Undertaker()
        self._stillborn = 0
        self._delayed = False

    @property
    def stillborn(self) -> int:
        """How many children in a row have ended before they were up."""
        return self._stillborn

    def fill(self) -> None:
        """Fork children until there are as many as there should be."""
        self._delayed = False
        try:
            while self.growing and len(self.links) < self.size:
                self._fork()
        except OSError as error:
            logger.error("Cannot start a pool process: %s", error)
            self._fill_later(1.0)

    def _fill_later(self, delay_s: float) -> None:
        if not self._delayed:
            self._delayed = True
            self._watch.later(delay_s, self.fill)

    def _fork(self) -> None:
        slot = next(i for i in itertools.count() if all(link.slot != i for link in self.links))
        signals.worker_before_create_process.send(sender=self)
        gc.collect()  # no child should end what the host has only forgotten
        link = Link(slot, self._rules.max_tasks)
        process = self._process(link)
        _flush_output()
        with warnings.catch_warnings():
            # that other threads hold locks is true of every pool that forks; children use none of them
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                pid = os.fork()
            except OSError:
                link.close()
                raise
        if pid == 0:
            _become(process)
        link.born(pid, process.name)
        self._undertaker.born(pid)
        self.links.append(link)
        self._watch.add_reader(link.stream.fileno(), self._on_readable, link)
        if link.exit_fd is not None:
            self._watch.add_reader(link.exit_fd, self._on_exit, link)
        link.patience = self._watch.later(self.up_within_s, self._kill_unless_up, link)

    def _process(self, link: Link) -> Any:
        siblings = list(self.links)
        seat = Seat(
            mark=link.mark,
            app=self._rules.app,
            hostname=self._rules.hostname,
            host_pid=os.getpid(),
            stream=link.child_stream,
            tokens=link.tokens,
            page=self._page,
            let_go=partial(_let_go, link, siblings, self._watch.inherited()),
            max_tasks=self._rules.max_tasks,
            max_memory_kb=self._rules.max_memory_kb,
        )
        process: Any = ForkContext().Process(target=child.main, args=(seat,), daemon=True)
        process.name = f"ForkPoolWorker-{next(self._numbers)}"
        process.index = link.slot
        return process

    def _kill_unless_up(self, link: Link) -> None:
        if link in self.links and not link.up:
            logger.error("%s (pid %s) is not up after %g s", link.name, link.pid, self.up_within_s)
            process_tree.kill(link.pid)

    def flush(self, link: Link) -> None:
        """Send what is written for a child, now and whenever it takes more."""
        if not link.flush():
            self._watch.add_writer(link.write_fd, self._on_writable, link)

    def _on_writable(self, link: Link) -> None:
        if link.flush():
            self._watch.remove(link.write_fd)

    def _on_readable(self, link: Link) -> None:
        self.listen(link)
        if link.closed:
            self._watch.remove(link.stream.fileno())
            self._expect_exit(link)

    def _expect_exit(self, link: Link) -> None:
        """Act on a closed stream: the child ends, or can do nothing any more but end."""
        if link.exit_fd is not None:
            self._watch.later(1.0, self._kill_if_there, link)
        else:
            process_tree.kill(link.pid)
            self._bury(link)

    def _kill_if_there(self, link: Link) -> None:
        if link in self.links:
            process_tree.kill(link.pid)

    def listen(self, link: Link) -> None:
        """Act on everything a child has said."""
        self._said.extend((link, frame) for frame in link.read())
        self._tell()

    def _tell(self) -> None:
        while self._said:  # a signal handler may interrupt this and go on with the rest
            self._listener.on_frame(*self._said.popleft())
        self._listener.on_turn()

    def saw_up(self, link: Link) -> None:
        """Take note that a child is ready."""
        link.up = True
        link.patience.cancel()
        self._stillborn = 0

    def _on_exit(self, link: Link) -> None:
        # the event may be meant for a descriptor that was closed, and whose number is this link's now
        if link in self.links and _has_exited(link.pid):
            self._bury(link)

    def _bury(self, link: Link) -> None:
        """Let go of a dead child, and replace it."""
        self.links.remove(link)
        link.patience.cancel()
        for fd in (link.stream.fileno(), link.write_fd, link.exit_fd):
            if fd is not None:
                self._watch.remove(fd)
        self._said.extend((link, frame) for frame in link.read_rest())
        self._tell()
        process_tree.send_group(link.pid, signal.SIGKILL)  # while the zombie still keeps its number taken
        exitcode = _exitcode(link.pid)
        self._undertaker.buried(link.pid)
        if exitcode not in _ORDERLY:
            process_tree.kill_marked(link.mark)
        running, unbegun = link.running, list(link.queue)
        link.running, link.room = None, 0
        link.queue.clear()
        link.close()
        try:
            self._listener.on_gone(link, running, unbegun, exitcode)
        finally:
            self._replace(link, exitcode)

    def _replace(self, link: Link, exitcode: int) -> None:
        if exitcode not in _ORDERLY and not (link.held or link.leaving):
            logger.error("Process %r pid:%r exited with %r", link.name, link.pid, human_status(exitcode))
        if link.up or link.leaving:
            self.fill()
        else:
            self._stillborn += 1
            self._fill_later(min(LONGEST_DELAY_S, 0.1 * 2**self._stillborn))

    def by_pid(self, pid: int) -> Link | None:
        """Return the child with this process id."""
        return next((link for link in self.links if link.pid == pid), None)

    def look(self) -> None:
        """Notice children that have ended, without waiting for the loop."""
        self._watch.wait(0)

    def dismiss(self, link: Link) -> None:
        """Let a child leave when it has ended what it runs. Its queue must have been recalled."""
        link.dismiss()
        self.flush(link)

    def disband(self) -> None:
        """Let all children leave, and kill those that do not; return when none is left."""
        self.growing = False
        for link in self.links:
            self.dismiss(link)
        self._await_exits(FAREWELL_S)
        self.kill()

    def kill(self) -> None:
        """End all children at once, with everything they started; return when none is left."""
        self.kill_all()
        self._await_exits(FAREWELL_S)
        self._undertaker.close()

    def kill_all(self) -> None:
        """End all children at once, with everything they started; return when they are dead. From any thread."""
        self.growing = False
        links = list(self.links)
        for link in links:
            link.leaving = True
            process_tree.kill(link.pid)
        process_tree.await_death({link.pid for link in links}, at_most_s=FAREWELL_S)

    def _await_exits(self, at_most_s: float) -> None:
        until_s = clock.monotonic_s() + at_most_s
        while self.links and (rest_s := until_s - clock.monotonic_s()) > 0:
            self._watch.wait(min(rest_s, 1.0))


def _has_exited(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _exitcode(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return EX_OK  # somebody else has asked first; nothing can be known


def _become(process: Any) -> None:
    """Live as *process*, in the child; never returns into the host's code."""
    code = child.EX_FAILURE
    try:
        random.seed()
        code = process._bootstrap()
    finally:
        os._exit(code)


def _let_go(link: Link, siblings: list[Link], fds: list[int]) -> None:
    link.become_child()
    for sibling in siblings:
        sibling.close()
    for fd in fds:
        os.close(fd)


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()
