"""Which queues a message reaches: exchanges, bindings and queues as the database has them, remembered for a second."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from functools import lru_cache

from atomic_celery import clock
from atomic_celery.store import NewMessage, Store
from atomic_celery.store.queues import Binding, Queue
from atomic_celery.transport.codec import Packed

FRESH_S = 1.0
"""How long a publisher may go on with what it read: a new binding counts everywhere after this."""

UNHEARD_EVENTS_S = 5.0
"""How long Celery's events, heartbeats most of all, are taken to have no listener before the database is asked anew."""

EVENTS = "celeryev"
"""Where Celery's events go, unless it is told otherwise."""

_CLOCK_FRESH_S = 60.0
_MOST_ROUTES = 10_000  # reply queues have a route each

Route = tuple[Queue, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    route: Route
    until_s: float


class Topology:
    """The routing tables of one database. Thread-safe; shared by everything that publishes there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._routes: dict[tuple[str, str], _Known] = {}
        self._queues: dict[str, tuple[Queue, float]] = {}
        self._types: dict[str, tuple[str, float]] = {}
        self._clock_lock = threading.Lock()
        self._clock_offset_ms, self._clock_until_s = 0.0, 0.0

    def route(self, exchange: str, routing_key: str) -> Route:
        """Return the queues a message goes to; none when nothing is bound."""
        now_s = clock.monotonic_s()
        known = self._routes.get((exchange, routing_key))
        if known is not None and known.until_s > now_s:
            return known.route
        route = self._look_up(exchange, routing_key)
        if not route and exchange != EVENTS:
            return route  # who asks by remote control, and asks once more, must not wait for an answer in vain
        if len(self._routes) >= _MOST_ROUTES:
            self._routes.clear()
        self._routes[exchange, routing_key] = _Known(route, now_s + (FRESH_S if route else UNHEARD_EVENTS_S))
        return route

    def addressed(self, packed: Packed, exchange: str, routing_key: str) -> list[NewMessage]:
        """Return a message as it is to be stored, once for each queue it goes to."""
        route = self.route(exchange, routing_key)
        return [packed.into(queue.id, expires_ms=self._expiry_ms(packed, queue)) for queue in route]

    def queue(self, name: str) -> Queue | None:
        """Return a queue by its name; None when there is none."""
        now_s = clock.monotonic_s()
        known = self._queues.get(name)
        if known is not None and known[1] > now_s:
            return known[0]
        queue = self._store.queues.get(name)
        if queue is not None:
            if len(self._queues) >= _MOST_ROUTES:
                self._queues.clear()
            self._queues[name] = (queue, now_s + FRESH_S)
        return queue

    def exchange_type(self, name: str) -> str | None:
        """Return how an exchange routes; None when there is none."""
        now_s = clock.monotonic_s()
        known = self._types.get(name)
        if known is not None and known[1] > now_s:
            return known[0]
        kind = self._store.queues.exchange_type(name)
        if kind is not None:
            self._types[name] = (kind, now_s + FRESH_S)
        return kind

    def declare_exchange(self, name: str, kind: str) -> None:
        """Make sure that an exchange exists."""
        self._store.queues.declare_exchange(name, kind)
        self._types[name] = (kind, clock.monotonic_s() + FRESH_S)
        self.changed()

    def delete_exchange(self, name: str) -> None:
        """Remove an exchange and its bindings."""
        self._store.queues.delete_exchange(name)
        self._types.pop(name, None)
        self.changed()

    def changed(self) -> None:
        """Forget what was read: something here declared, bound or deleted."""
        self._routes.clear()
        self._queues.clear()

    def now_ms(self) -> int:
        """Return the database's time, asked once a minute and carried on by the local clock."""
        now_s = clock.monotonic_s()
        if now_s >= self._clock_until_s:
            with self._clock_lock:
                self._clock_offset_ms = self._store.now_ms() - now_s * 1000
                self._clock_until_s = now_s + _CLOCK_FRESH_S
        return int(now_s * 1000 + self._clock_offset_ms)

    def _expiry_ms(self, packed: Packed, queue: Queue) -> int | None:
        lives_ms = [ms for ms in (packed.lives_ms, queue.message_ttl_ms) if ms is not None]
        return self.now_ms() + min(lives_ms) if lives_ms else packed.expires_ms

    def _look_up(self, exchange: str, routing_key: str) -> Route:
        if not exchange:
            queue = self.queue(routing_key)
            return () if queue is None else (queue,)
        bindings = self._store.queues.bindings(exchange)
        if not bindings:
            return ()
        kind = self.exchange_type(exchange) or "direct"
        names = {binding.queue for binding in bindings if matches(kind, binding, routing_key)}
        found = (self.queue(name) for name in sorted(names))
        return tuple(queue for queue in found if queue is not None)


def pattern_of(exchange_type: str, routing_key: str) -> str:
    """Return what a binding matches: for a topic a regular expression over the key's words, each with its dot."""
    if exchange_type != "topic":
        return routing_key
    return "".join(_WILDCARDS.get(word) or rf"\.{re.escape(word)}" for word in routing_key.split("."))


_WILDCARDS = {"*": r"\.[^.]+", "#": r"(?:\.[^.]*)*"}


def matches(exchange_type: str, binding: Binding, routing_key: str) -> bool:
    """Whether a message with that key goes where *binding* leads."""
    if exchange_type == "fanout":
        return True
    if exchange_type == "topic":
        return _compiled(binding.pattern).fullmatch(f".{routing_key}") is not None
    return binding.routing_key == routing_key


@lru_cache(maxsize=1000)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
