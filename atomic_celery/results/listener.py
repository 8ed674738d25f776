"""Who waits for results in this process, and the one thread and connection that wait for all of them.

A result rings the doorbell of whoever watches it. A transaction that began before the watch rings nobody, so there is a
look now and then as well.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import Protocol
from uuid import uuid4
from weakref import WeakKeyDictionary

from atomic_celery import clock, errors
from atomic_celery.backoff import Backoff
from atomic_celery.store import Store
from atomic_celery.store.doorbell import Doorbell

logger = logging.getLogger(__name__)

LADDER_S = (0.02, 0.2, 1.0)
"""How long to sleep after the n-th look in vain, while the database is heard."""

DEAF_LADDER_S = (0.02, 0.05, 0.1, 0.2, 0.5)
"""The same while nothing can be heard."""

KEEN_FOR_S = 0.25
"""How long after somebody came a result is expected at any moment."""

WATCH_FOR_S = 120.0
IDLE_S = 60.0
"""How long the thread stays, and its connection open, when nobody waits. One that is lost meanwhile is not replaced."""

FINAL = frozenset({"SUCCESS", "FAILURE", "REVOKED"})

News = tuple[str, str]
"""A task's id, and its recorded meta."""


class Waiting(Protocol):
    """Somebody who waits for results."""

    wants_steps: bool
    """Whether also for what tasks say of themselves before they end."""

    def deliver(self, news: list[News]) -> None:
        """Take what was waited for. On the listener's thread."""
        ...

    def fail(self, error: Exception) -> None:
        """Learn that it is no use to wait. On the listener's thread."""
        ...


class Listener:
    """Waits for the results of one database."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._name = f"results {uuid4().hex}"
        self._requests: deque[tuple[bool, Waiting, Collection[str]]] = deque()
        self._awaited: dict[str, list[Waiting]] = {}
        self._watched: dict[str, float] = {}
        self._steps: dict[str, str] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._doorbell: Doorbell | None = None
        self._backoff, self._retry_at_s = Backoff(), 0.0
        self._in_vain = 0
        self._dismissed = False

    def listen(self, who: Waiting, task_ids: Collection[str]) -> None:
        """Deliver these to *who*, as they come. Safe from any thread."""
        self._requests.append((True, who, task_ids))
        with self._lock:
            if self._thread is None:
                self._doorbell = self._store.doorbell(self._name)
                self._thread = threading.Thread(target=self._run, name="atomic-results", daemon=True)
                self._thread.start()
            assert self._doorbell is not None
            self._doorbell.ring()

    def leave(self, who: Waiting, task_ids: Collection[str]) -> None:
        """Deliver these to *who* no more. Safe from any thread."""
        self._requests.append((False, who, task_ids))

    def dismiss(self) -> None:
        """Let the thread go as soon as nobody waits. Safe from any thread, and in a finalizer."""
        self._dismissed = True
        if (doorbell := self._doorbell) is not None:
            doorbell.ring()

    def _run(self) -> None:
        assert self._doorbell is not None
        keen_until_s = 0.0
        while True:
            now_s = clock.monotonic_s()
            if self._heed():
                keen_until_s = now_s + KEEN_FOR_S
            if not (self._awaited or self._watched):
                if (self._dismissed or not self._doorbell.rest(IDLE_S)) and self._let_go():
                    return
                continue
            wait_s = self._turn(now_s)
            if not self._awaited:
                continue
            if self._doorbell.wait(wait_s, keen=now_s < keen_until_s) and self._doorbell.listening:
                self._in_vain = 0

    def _let_go(self) -> bool:
        """Close the connection, unless somebody has come at the last moment."""
        with self._lock:
            if self._requests:
                return False
            self._thread, doorbell, self._doorbell = None, self._doorbell, None
        if doorbell is not None:
            doorbell.close()
        return True

    def _turn(self, now_s: float) -> float:
        """Look once, unless the database deserves a rest; return how long to sleep."""
        if self._awaited and now_s < self._retry_at_s:
            return self._retry_at_s - now_s
        try:
            with self._store.deadline(self._store.settings.statement_timeout_s):
                return self._look_and_watch(now_s)
        except Exception as error:
            return self._failed(error)

    def _failed(self, error: Exception) -> float:
        if self._awaited and isinstance(error, errors.StoreError) and error.transient:
            retry_in_s = self._backoff.failed()
            self._retry_at_s = clock.monotonic_s() + retry_in_s
            logger.warning("cannot look for results (%s); again in %g s", error, retry_in_s)
            return retry_in_s
        for who in {id(each): each for waiting in self._awaited.values() for each in waiting}.values():
            who.fail(error)
        self._awaited.clear()
        self._watched.clear()
        return 0.0

    def _heed(self) -> bool:
        """Take note of who has come and gone; True if somebody came."""
        anybody = False
        while self._requests:
            came, who, task_ids = self._requests.popleft()
            anybody |= came
            for task_id in task_ids:
                if came:
                    self._awaited.setdefault(task_id, []).append(who)
                elif (waiting := self._awaited.get(task_id)) is not None:
                    with suppress(ValueError):
                        waiting.remove(who)
                    if not waiting:
                        del self._awaited[task_id]
        return anybody

    def _look_and_watch(self, began_s: float) -> float:
        self._look(list(self._awaited))
        self._watch(began_s)
        self._backoff.succeeded()
        assert self._doorbell is not None
        ladder = LADDER_S if self._doorbell.listening else DEAF_LADDER_S
        rest_s = ladder[min(self._in_vain, len(ladder) - 1)]
        self._in_vain += 1
        return max(rest_s, clock.monotonic_s() - began_s)

    def _watch(self, now_s: float) -> None:
        """Be rung for what is awaited, and for nothing else."""
        if self._store.dialect == "sqlite":
            return  # every commit is heard
        stale = [task_id for task_id in self._watched if task_id not in self._awaited]
        self._store.results.unwatch(self._name, stale)
        for task_id in stale:
            del self._watched[task_id]
        new = [task_id for task_id in self._awaited if self._watched.get(task_id, 0.0) <= now_s]
        if new:
            self._store.results.watch(self._name, new, round(WATCH_FOR_S * 1000))
            self._watched.update(dict.fromkeys(new, now_s + WATCH_FOR_S / 2))
            self._look(new)  # what came before it was watched rang nobody

    def _look(self, task_ids: list[str]) -> None:
        """Deliver what is there."""
        if not task_ids:
            return
        steps = any(who.wants_steps for waiting in self._awaited.values() for who in waiting)
        found = self._store.results.get(task_ids, final=not steps)
        parcels: dict[int, tuple[Waiting, list[News]]] = {}
        for task_id, (status, meta) in found.items():
            if not self._is_news(task_id, status, meta):
                continue
            for who in self._awaited[task_id]:
                parcels.setdefault(id(who), (who, []))[1].append((task_id, meta))
            if status in FINAL:
                self._conclude(task_id)
        for who, news in parcels.values():
            who.deliver(news)
            self._in_vain = 0

    def _is_news(self, task_id: str, status: str, meta: str) -> bool:
        if status in FINAL:
            return True
        before, self._steps[task_id] = self._steps.get(task_id), meta
        return before != meta

    def _conclude(self, task_id: str) -> None:
        del self._awaited[task_id]
        self._watched.pop(task_id, None)  # the row went when it rang
        self._steps.pop(task_id, None)


_listeners: WeakKeyDictionary[Store, Listener] = WeakKeyDictionary()
_lock = threading.Lock()


def of(store: Store) -> Listener:
    """Return this process's listener for a database."""
    with _lock:
        listener = _listeners.get(store)
        if listener is None:
            listener = _listeners[store] = Listener(store)
        return listener


def dismiss(store: Store) -> None:
    """Let the listener of a database that is not used any more go. Safe in a finalizer."""
    if (listener := _listeners.get(store)) is not None:
        listener.dismiss()


def _start_anew_in_child() -> None:
    global _listeners, _lock
    _listeners, _lock = WeakKeyDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_start_anew_in_child)
