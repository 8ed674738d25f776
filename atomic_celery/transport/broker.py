"""One database as this process uses it: one pool of connections, one memory of its routes, one holder.

kombu makes a connection object wherever it needs one. All of those to one database share what is here, and the last
one to let go closes it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atomic_celery.claimer import Claimer, Hooks
from atomic_celery.config import Settings
from atomic_celery.demand import Consumer, Nobody
from atomic_celery.lease import LeaseKeeper
from atomic_celery.post import Letter
from atomic_celery.store import open_store
from atomic_celery.store.records import Holder
from atomic_celery.transport import address
from atomic_celery.transport.topology import EVENTS, Topology

if TYPE_CHECKING:
    from kombu import Connection


REPLIES = "reply."
"""How the names of exchanges begin that carry the answers of remote control."""


@dataclass(slots=True)
class Tenure:
    """Who claims here on behalf of a worker, and what only the worker knows.

    A worker leaves it with the `Broker` before it connects. It outlives the connections: the claimer that the first
    of them starts goes on settling and, once there is another one, claiming.
    """

    holder: Holder
    keeper: LeaseKeeper
    hooks: Hooks = field(default_factory=Hooks)
    started: Callable[[int], bool] = lambda message_id: False
    """Whether somebody works on that message, so that the end of a connection does not give it back."""
    appetite: Callable[[], int] | None = None
    """How many more messages the pool could use; None: the prefetch count decides."""
    claimer: Claimer | None = None
    pid: int = field(default_factory=os.getpid)
    broker: Broker | None = None

    def claimer_for(self, consumer: Consumer) -> Claimer:
        """Return the worker's claimer, claiming for *consumer* from now on."""
        if self.claimer is None:
            assert self.broker is not None
            self.claimer = Claimer(
                self.broker.store,
                self.holder,
                self.keeper,
                self.broker.settings,
                sleeper=self.holder.id,
                consumer=consumer,
                hooks=self.hooks,
            )
            self.claimer.post.misrouted = self.broker.topology.changed
        self.claimer.consumer = consumer
        return self.claimer

    def carries(self, exchange: str, letter: Letter) -> bool:
        """Publish from the claimer's thread what nobody waits for, and say so; False: the caller has to."""
        if self.claimer is None or not (exchange == EVENTS or exchange.startswith(REPLIES)):
            return False
        self.claimer.send(letter)
        return True

    def leave(self, consumer: Consumer) -> None:
        """Claim for *consumer* no more; what it claimed can still be settled."""
        if self.claimer is not None and self.claimer.consumer is consumer:
            self.claimer.consumer = Nobody()


class Broker:
    """What the connections of this process to one database share."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.settings = settings
        self.store = open_store(url, settings, create=url.startswith("sqlite"))
        self.topology = Topology(self.store)
        self._tenure: Tenure | None = None
        self.store.prefer_own_connections(lambda: self.tenure is not None)

    @property
    def tenure(self) -> Tenure | None:
        """The worker's, in the worker's own process; a forked child is nobody's holder."""
        tenure = self._tenure
        return tenure if tenure is not None and tenure.pid == os.getpid() else None

    @tenure.setter
    def tenure(self, tenure: Tenure | None) -> None:
        self._tenure = tenure
        if tenure is not None:
            tenure.broker = self

    def connect(self) -> None:
        """Make sure that the database is there and has the tables we know.

        Raises:
            StoreUnavailable: It cannot be reached.
            SchemaMismatch: Its tables are missing, older or newer.
        """
        self.store.schema.require()


_Key = tuple[str, str]
_brokers: dict[_Key, tuple[Broker, int]] = {}
_given_back: deque[Broker] = deque()
_lock = threading.Lock()


def borrow(client: Connection) -> Broker:
    """Return the broker *client* means; to be given back with `give_back`.

    Raises:
        ConfigError: Its URL or its settings are wrong.
    """
    return borrow_url(address.url_of(client), address.settings_of(client))


def borrow_url(url: str, settings: Settings) -> Broker:
    """Return the broker at *url*, without ``atomic+`` in front; to be given back with `give_back`."""
    key = (url, repr(settings))
    with _lock:
        broker, users = _brokers.get(key, (None, 0))
        if broker is None:
            broker = Broker(url, settings)
        _brokers[key] = (broker, users + 1)
    _let_go()
    return broker


def give_back(broker: Broker) -> None:
    """Let go of a borrowed broker; with its last user, its connections are closed. Safe in a finalizer."""
    _given_back.append(broker)
    _let_go()


def _let_go() -> None:
    # The garbage collector may call this anywhere, also where the lock is held: whoever holds it looks again after.
    while _given_back and _lock.acquire(blocking=False):
        try:
            while _given_back:
                _forget_a_user(_given_back.popleft())
        finally:
            _lock.release()


def _forget_a_user(broker: Broker) -> None:
    for key, (known, users) in list(_brokers.items()):
        if known is broker:
            _brokers[key] = (known, users - 1)
            if users <= 1:
                del _brokers[key]
                broker.store.close()


def _unlock_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_unlock_in_child)
