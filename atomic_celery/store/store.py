"""The store: everything the fleet shares, behind one door."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from atomic_celery.config import Settings
from atomic_celery.store import elsewhere, guests
from atomic_celery.store.controllers import Controllers
from atomic_celery.store.database import Database
from atomic_celery.store.django_results import DjangoResults
from atomic_celery.store.doorbell import Doorbell, open_doorbell
from atomic_celery.store.fleet_events import FleetEvents
from atomic_celery.store.guests import Guest
from atomic_celery.store.hosts import Hosts
from atomic_celery.store.limits import Limits
from atomic_celery.store.loads import Loads
from atomic_celery.store.messages import Messages
from atomic_celery.store.queues import Queues
from atomic_celery.store.reads import Reads
from atomic_celery.store.results import Results
from atomic_celery.store.revocations import Revocations
from atomic_celery.store.roots import Roots
from atomic_celery.store.schedules import Schedules
from atomic_celery.store.schema import Schema
from atomic_celery.store.searches import Searches
from atomic_celery.store.terms import Terms
from atomic_celery.store.traffic import Traffic
from atomic_celery.store.urls import StoreUrl


class Store:
    """One database's queues, messages, hosts and events.

    Safe to share between threads: each uses a connection of its own. Nothing is opened before it is
    used, and a forked child begins with connections of its own.
    """

    def __init__(self, url: StoreUrl, settings: Settings) -> None:
        self._database = database = Database(url, settings)
        self.url, self.settings, self.dialect = url, settings, url.dialect
        self.schema = Schema(database)
        self.queues = Queues(database)
        self.limits = Limits(database, self.queues.ring)
        self.roots = Roots(database, self.limits)
        self.messages = Messages(database, self.queues.ring, self.limits, self.roots)
        self.hosts = Hosts(database)
        self.events = FleetEvents(database)
        self.revocations = Revocations(database)
        self.reads = Reads(database)
        self.searches = Searches(database)
        self.results = Results(database)
        self.django_results = DjangoResults(database)
        self.terms = Terms(database)
        self.schedules = Schedules(database)
        self.traffic = Traffic(database)
        self.loads = Loads(database)
        self.controllers = Controllers(database)

    def transaction(self, name: str = "transaction") -> AbstractContextManager[None]:
        """Run what is inside in one transaction of this thread; inside of another, as part of it.

        Args:
            name: What its crash points are called: ``<name>.committing``, ``<name>.committed``.
        """
        return self._database.transaction(name)

    def live_with(self, find_guest: Callable[[], Guest | None]) -> None:
        """Let a guest be there always: what is published joins it unless another one is invited."""
        self._database.find_guest = lambda: guests.current() or find_guest()

    def prefer_own_connections(self, when: Callable[[], bool]) -> None:
        """Join such a guest only in its transactions, *when* this process has connections of its own anyway."""
        self._database.prefers_own = when

    @property
    def journal(self) -> str:
        """Which tables in which database these are, however it is reached."""
        said = dict(self.url.parameters)
        place = self.url.path or " ".join(said.get(name, "") for name in ("host", "port", "dbname", "service"))
        return f"{self.dialect} {place} {self.settings.prefix}"

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Run what is inside on the application's connection that lives here, in whatever transaction that is in.

        Without one (the URL names the database itself) it changes nothing. Errors of such a connection stay its own.
        """
        guest = self._database.guest()
        with self._database.at_home():
            if guest is not None and guest.is_home and guest.dialect == "sqlite":
                self._database.run(self._database.statements.of("session")["steer"])
            yield

    def joining(self) -> bool:
        """Whether what is published here now belongs to a transaction of the application's."""
        guest = self._database.guest()
        return guest is not None and guest.in_transaction

    def settling(self) -> bool:
        """Whether a queue that is declared here now may be undone with a guest's transaction."""
        guest = self._database.guest()
        return guest is not None and guest.is_home and guest.dialect == "sqlite"

    def deadline(self, timeout_s: float) -> AbstractContextManager[None]:
        """Cut this thread's connection off after *timeout_s*.

        Raises:
            StoreUnavailable: The time was up: whether the last statement happened is unknown.
        """
        return self._database.deadline(timeout_s)

    def at(self, now_ms: int | None) -> None:
        """Say what time the database has, for tests; None: its own."""
        self._database.at(now_ms)

    def now_ms(self) -> int:
        """Ask the database for its time."""
        return self.schema.now_ms()

    def doorbell(self, holder: str) -> Doorbell:
        """Open what wakes *holder* when a message arrives that it waits for."""
        return open_doorbell(self._database, holder)

    def close(self) -> None:
        """Close every connection. A later use opens new ones."""
        self._database.close()

    def forget(self) -> None:
        """Drop every connection without a word to the server: it belongs to a parent process."""
        self._database.forget()


def open_store(url: str, settings: Settings, *, create: bool = False) -> Store:
    """Return the store in the database at *url*; nothing is opened yet.

    Args:
        url: With or without ``atomic+`` in front.
        settings: The fleet's settings.
        create: Make the tables of a SQLite database that has none; other databases are migrated by
            command only.

    Raises:
        ConfigError: The URL is wrong, its driver is missing, or it does not fit the settings.
    """
    store = Store(StoreUrl.parse(url), settings)
    if store.url.alias is not None:
        store.live_with(elsewhere.guest_finder(store.url.alias))
    if create and store.dialect == "sqlite" and store.schema.version() is None:
        store.schema.migrate()
    return store
