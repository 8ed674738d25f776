"""A token that serves as a password for minutes: made when a connection needs one, shared until it nears its end."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable

from atomic_celery import errors
from atomic_celery.clock import NEVER, Clock, Moment, SystemClock
from atomic_celery.store import clouds
from atomic_celery.store.clouds import Login, Mint, Minted

_MARGIN_S = 120.0
"""A token with less than this left is replaced; where that fails it is used to its end."""

_AT_LEAST_S = 60.0
"""How long a fresh token is used whatever end it has: by a clock that is an hour fast, each has ended already."""


class Token:
    """The token of one login, for all connections of this process. Safe from any thread.

    One request is in flight at a time. Whoever needs it waits for the same one and shares what comes of it, failure
    included; who has waited *patience_s* waits no longer, and the request goes on for the next one.
    """

    def __init__(self, name: str, mint: Mint, patience_s: float, clock: Clock | None = None) -> None:
        self._name, self._mint, self._patience_s = name, mint, patience_s
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._request: _Request | None = None
        self._secret: str | None = None
        self._stale_from = self._ends = NEVER

    def secret(self) -> str:
        """Return a token that the server will take now.

        Raises:
            StoreUnavailable: The cloud gives none at the moment.
        """
        with self._lock:
            if (fresh := self._held(self._stale_from)) is not None:
                return fresh
            if self._request is None:
                self._request = _Request(self._mint, self._clock.now(), self._take)
            request = self._request
        failure = request.wait(self._patience_s)
        with self._lock:
            held = self._held(self._ends)
        if held is None:
            raise errors.StoreUnavailable(failure or f"{self._name}: no token within {self._patience_s:g} s")
        return held

    def doubt(self, secret: str | None) -> None:
        """Ask the cloud again next time: a connection failed that was opened with *secret*, maybe because of it."""
        with self._lock:
            if secret == self._secret:
                self._stale_from = self._clock.now()

    def _held(self, until: Moment) -> str | None:
        return None if until.reached(self._clock.now()) else self._secret

    def _take(self, minted: Minted | None, asked_at: Moment) -> None:
        with self._lock:
            self._request = None
            if minted is not None:
                self._secret = minted.secret
                lives_s = max(minted.lives_s, _AT_LEAST_S)
                self._ends = asked_at.later(lives_s)
                self._stale_from = asked_at.later(max(lives_s - _MARGIN_S, lives_s / 2))

    def __repr__(self) -> str:
        return f"Token({self._name!r})"


class _Request:
    """One question to the cloud, on a thread of its own: a vendor's library may retry for half a minute."""

    def __init__(self, mint: Mint, asked_at: Moment, answered: Callable[[Minted | None, Moment], None]) -> None:
        self._mint, self._asked_at, self._answered = mint, asked_at, answered
        self._over = threading.Event()
        self._failure: str | None = None
        threading.Thread(target=self._run, name="atomic-token", daemon=True).start()

    def wait(self, timeout_s: float) -> str | None:
        """Wait for the answer, at most *timeout_s*; return why there is none, if that is known."""
        self._over.wait(timeout_s)
        return self._failure

    def _run(self) -> None:
        minted: Minted | None = None
        try:
            minted = self._mint()
        except Exception as failure:  # said to whoever waits
            self._failure = str(failure)
        finally:
            self._answered(minted, self._asked_at)
            self._over.set()


@functools.lru_cache(maxsize=64)
def of(cloud: str, login: Login, patience_s: float) -> Token:
    """Return this process's token of *cloud* for *login*.

    Raises:
        ConfigError: The cloud's library is not installed, or something is not set that it needs.
    """
    return Token(f"auth {cloud}", clouds.minter(cloud, login), patience_s)


# A lock that another thread held at the fork would stay closed in the child.
os.register_at_fork(after_in_child=of.cache_clear)
