"""How a consumer sleeps until the database may have something for it.

Waking is a hint, never a promise: whoever is woken looks, and whoever is not still looks now and
then. So a doorbell may ring for nothing, and does so whenever it may have missed a ring.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import select
import socket
import threading
from collections.abc import Callable
from typing import Any, Protocol

from atomic_celery import backoff, clock
from atomic_celery.store.database import Database
from atomic_celery.store.failures import translate

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""How often a doorbell that does not listen wakes its consumer."""

_COMMIT_CHECK_S = 0.020
_QUICK_CHECK_S, _QUICK_FOR_S = 0.004, 1.0
"""How often to look for commits, and for how long, once there was one: others often follow."""

_KEEN_CHECK_S = 0.001
"""How often, by somebody who knows that one is to come at any moment."""


class Ear(Protocol):
    """What hears the database."""

    def patience_s(self, *, keen: bool) -> float:
        """Return how long to sleep before asking `heard` again, unless `fileno` has something sooner."""
        ...

    @property
    def listening(self) -> bool:
        """Whether it would hear now."""
        ...

    def heard(self) -> bool:
        """Whether something may have happened since this was asked last."""
        ...

    def overhear(self) -> None:
        """Forget what has come. An ear that is lost stays so, without a word: nobody needs it."""
        ...

    def fileno(self) -> int | None:
        """Return what becomes readable when there is something to hear."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Doorbell:
    """One consumer's bell: rung from inside by any thread, from outside by the database.

    Belongs to the process that made it; a forked child makes its own.
    """

    def __init__(self, ear: Callable[[Callable[[], None]], Ear]) -> None:
        self._rung, self._button = socket.socketpair()
        self._rung.setblocking(False)
        self._button.setblocking(False)
        self._ear = ear(self.ring)
        self._closed = False
        self.heard = False
        """Whether it was the database that ended the last `wait`, also if somebody inside rang too."""

    @property
    def listening(self) -> bool:
        """Whether the database is heard; while it is not, `wait` ends after `LOOK_EVERY_S`."""
        return self._ear.listening

    def ring(self) -> None:
        """End the present or the next `wait`. Safe from any thread and from a signal handler."""
        with contextlib.suppress(OSError):  # full: it has been rung; closed: nobody waits
            self._button.send(b"!")

    def wait(self, timeout_s: float, *, keen: bool = False) -> bool:
        """Sleep until rung, at most *timeout_s*; True: have a look.

        Args:
            keen: Whether a ring is expected at any moment, so that it is worth some effort to hear it at once.
        """
        started_s = clock.monotonic_s()
        while True:
            # Both are emptied: one look answers whatever came before it.
            rung, self.heard = self._was_rung(), self._ear.heard()
            if rung or self.heard or self._closed:
                return True
            waited_s = clock.monotonic_s() - started_s
            if waited_s >= timeout_s:
                return False
            left_s = timeout_s - waited_s
            if not self.listening:
                if waited_s >= LOOK_EVERY_S:
                    return True
                left_s = min(left_s, LOOK_EVERY_S - waited_s)
            self._sleep(min(left_s, self._ear.patience_s(keen=keen)))

    def rest(self, timeout_s: float) -> bool:
        """Sleep until rung from inside, at most *timeout_s*; the database is neither heeded nor looked for.

        False: the time is up, or the database is not heard, so that there is nothing to keep open.
        """
        until_s = clock.monotonic_s() + timeout_s
        while not self._was_rung():
            left_s = until_s - clock.monotonic_s()
            if left_s <= 0 or not self.listening:
                return False
            self._sleep(left_s)
            self._ear.overhear()
        return True

    def close(self) -> None:
        """Stop listening and end a `wait` that goes on. Safe to repeat."""
        self._closed = True
        self.ring()
        self._ear.close()
        self._button.close()
        self._rung.close()

    def _was_rung(self) -> bool:
        rung = False
        with contextlib.suppress(OSError):
            while self._rung.recv(4096):
                rung = True
        return rung

    def _sleep(self, at_most_s: float) -> None:
        # Not select(): a process with many files has descriptors that it cannot take.
        poll = select.poll()
        for descriptor in (self._rung.fileno(), self._ear.fileno()):
            if descriptor is not None and descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        poll.poll(math.ceil(at_most_s * 1000))


def open_doorbell(database: Database, holder: str) -> Doorbell:
    """Return the doorbell of *holder*; it connects with its first `wait`."""
    if database.dialect == "sqlite":
        return Doorbell(lambda _ring: CommitEar(database))
    if not database.settings.notify:
        return Doorbell(lambda _ring: NoEar())
    name = channel(database.settings.prefix, holder)
    return Doorbell(lambda ring: ListenEar(database, name, ring))


def channel(prefix: str, holder: str) -> str:
    """Name the channel of *holder*, as ``sql/postgresql/doorbell.sql`` does."""
    return f"{prefix}_{hashlib.sha256(holder.encode()).hexdigest()[:32]}"


class NoEar:
    """Nothing can be heard, as behind a pooler that shares sessions between clients."""

    listening = False

    def patience_s(self, *, keen: bool) -> float:  # noqa: ARG002
        """Return when to look anyway."""
        return LOOK_EVERY_S

    def heard(self) -> bool:
        """Say no."""
        return False

    def overhear(self) -> None:
        """Do nothing."""

    def fileno(self) -> int | None:
        """Return nothing to wait on."""
        return None

    def close(self) -> None:
        """Do nothing."""


class _Attempts:
    """When to try to listen, after failures ever more seldom."""

    def __init__(self) -> None:
        self._backoff = backoff.Backoff()
        self._next_at_s = -math.inf

    def due(self) -> bool:
        """Whether to try now."""
        return clock.monotonic_s() >= self._next_at_s

    def failed(self, error: Exception) -> None:
        """Say that it failed, and wait a while."""
        retry_in_s = self._backoff.failed()
        self._next_at_s = clock.monotonic_s() + retry_in_s
        logger.warning(
            "cannot listen for messages (%s); looking every %g s, listening again in %g s",
            translate(error),
            LOOK_EVERY_S,
            retry_in_s,
        )

    def succeeded(self) -> None:
        """Say that it works, if it had failed."""
        if self._backoff.succeeded():
            logger.info("listening for messages again")


class CommitEar:
    """Hears every commit to a SQLite file by anybody else, a few microseconds a look."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._query = database.statements.of("doorbell")["changed"].parts[0]
        self._attempts = _Attempts()
        self._line: Any = None
        self._opened = contextlib.ExitStack()
        self._version: int | None = None
        self._heard_at_s = -math.inf

    def patience_s(self, *, keen: bool) -> float:
        """Return how long to sleep between two looks."""
        if keen:
            return _KEEN_CHECK_S
        return _QUICK_CHECK_S if clock.monotonic_s() - self._heard_at_s < _QUICK_FOR_S else _COMMIT_CHECK_S

    @property
    def listening(self) -> bool:
        """Whether the file is open."""
        return self._line is not None

    def heard(self) -> bool:
        """Whether somebody has committed; the first look after opening hears what was before."""
        if self._line is None and not self._attempts.due():
            return False
        try:
            before, self._version = self._version, self._look()
        except Exception as error:
            self._attempts.failed(error)
            self.close()
            return False
        if before == self._version:
            return False
        self._heard_at_s = clock.monotonic_s()
        return True

    def overhear(self) -> None:
        """Do nothing: an open file costs nothing, and what was committed meanwhile is heard later."""

    def fileno(self) -> int | None:
        """Return nothing to wait on."""
        return None

    def close(self) -> None:
        """Close the connection."""
        self._line, self._version = None, None
        self._opened.close()

    def _look(self) -> int:
        if self._line is None:
            self._line = self._opened.enter_context(self._database.own_connection())
            self._attempts.succeeded()
        with self._database.undisturbed():
            [[version]] = self._line.execute(self._query).fetchall()
        return int(version)


class ListenEar:
    """Hears NOTIFY on a connection of its own; dials again when that is lost.

    Dialling happens on a thread of its own: a database that does not answer must not keep the
    consumer from hearing its own process.
    """

    def __init__(self, database: Database, name: str, ring: Callable[[], None]) -> None:
        self._database, self._ring = database, ring
        listen = database.statements.of("doorbell")["listen"].parts[0]
        self._listen = listen.replace("{channel}", name)
        self._attempts = _Attempts()
        self._lock = threading.Lock()
        self._line: _Line | None = None
        self._dialling = self._closed = False

    @property
    def listening(self) -> bool:
        """Whether the line stands."""
        return self._line is not None

    def patience_s(self, *, keen: bool) -> float:  # noqa: ARG002
        """Return that there is no hurry: the line itself wakes its consumer."""
        return 3600.0

    def heard(self) -> bool:
        """Whether a NOTIFY came; without a line, see to one."""
        if self._line is None:
            self._dial_if_due()
            return False
        try:
            return self._line.notified()
        except Exception as error:
            self._hang_up()
            self._attempts.failed(error)
            return False

    def overhear(self) -> None:
        """Read what has come; hang up if the line is lost."""
        if self._line is None:
            return
        try:
            self._line.notified()
        except Exception:
            self._hang_up()

    def fileno(self) -> int | None:
        """Return the line's socket."""
        return None if self._line is None else self._line.descriptor

    def close(self) -> None:
        """Close the line, also one that is being dialled."""
        with self._lock:
            self._closed = True
        self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            line.close()

    def _dial_if_due(self) -> None:
        with self._lock:
            if self._closed or self._dialling or not self._attempts.due():
                return
            self._dialling = True
        threading.Thread(target=self._dial, name="atomic-doorbell", daemon=True).start()

    def _dial(self) -> None:
        try:
            line = _Line(self._database, self._listen)
        except Exception as error:
            self._attempts.failed(error)
            self._dialling = False
            return
        with self._lock:
            self._dialling = False
            if self._closed:
                line.close()
                return
            self._line = line
        self._attempts.succeeded()
        self._ring()  # for whatever was said while nobody listened


class _Line:
    """A connection that listens."""

    def __init__(self, database: Database, listen: str) -> None:
        self._opened = contextlib.ExitStack()
        self._driver: Any = self._opened.enter_context(database.own_connection())
        try:
            with self._driver.cursor() as cursor:
                cursor.execute(listen)
            self.descriptor: int = self._driver.fileno()  # a lost connection would refuse to tell
        except BaseException:
            self._opened.close()
            raise

    def notified(self) -> bool:
        """Read what has come; whether it was a NOTIFY. Raises the driver's error when lost.

        A server that goes says so first, and only the next read fails.
        """
        if hasattr(self._driver, "pgconn"):  # psycopg 3
            self._driver.pgconn.consume_input()
            return any([*iter(self._driver.pgconn.notifies, None)])
        self._driver.poll()
        heard = bool(self._driver.notifies)
        self._driver.notifies.clear()
        return heard

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(Exception):  # it may be what is broken
            self._opened.close()
