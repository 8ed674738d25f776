"""``atomic+django://ALIAS``: the broker is the database that Django's settings call ALIAS.

What a program publishes goes through Django's own connection, and so through the transaction that it is in. A worker
opens connections of its own besides, with the same settings. Django is imported when such a URL is used.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from atomic_celery import config, errors
from atomic_celery.store import guests, open_store, urls
from atomic_celery.store.connection import Answer, Parameters
from atomic_celery.store.guests import Alarm, Guest, Wake
from atomic_celery.store.statements import Statement
from atomic_celery.store.urls import Dialect, StoreUrl

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

_CELERYS = "CELERY_ATOMIC_"
_INSTALL = "install Django: pip install 'atomic_celery[django]'"


def locate(name: str) -> StoreUrl:
    """Return the database that Django calls *name*.

    Raises:
        ConfigError: Django is not installed or not configured, knows no such alias, or it is of another kind.
    """
    alias = name.strip("/") or "default"
    connection = _connection(alias)
    if connection.vendor == "sqlite":
        path = None if connection.is_in_memory_db() else str(connection.settings_dict["NAME"])
        return StoreUrl("sqlite", "pysqlite", path=path, alias=f"django://{alias}")
    if connection.vendor == "postgresql":
        driver = connection.Database.__name__
        return urls.from_libpq(connection.get_connection_params(), driver=driver, alias=f"django://{alias}")
    raise errors.ConfigError(f"DATABASES[{alias!r}] is {connection.vendor}; use one that is PostgreSQL or SQLite")


def guest_finder(name: str) -> Callable[[], Guest | None]:
    """Return what finds Django's connection to the database that it calls *name*."""
    guest = DjangoGuest(lambda: _connection(name))
    guests.settle_in(f"django://{name}", guest.scope)
    return lambda: guest


def written_to(model: Any) -> str:
    """Return the alias of the database that rows of *model* are written to."""
    from django.db import router

    return str(router.db_for_write(model))


@contextmanager
def writing(model: Any) -> Iterator[None]:
    """Open a transaction, or a savepoint, in the database that rows of *model* are written to."""
    from django.db import transaction

    with transaction.atomic(using=written_to(model)):
        yield


def field(name: str) -> Any:
    """Return what a field of a row is, for an update that depends on it."""
    from django.db.models import F

    return F(name)


def keeps_utc() -> bool:
    """Whether SQLite holds Django's times in UTC, and not in the project's time zone."""
    from django.conf import settings

    return bool(settings.USE_TZ)


def fleet_url() -> str:
    """Return the URL of the fleet that the Django project belongs to, as its settings say.

    ``ATOMIC_URL``; without it the first ``atomic+…`` URL of ``CELERY_BROKER_URL``, else ``atomic+django://default``.
    """
    from django.conf import settings

    brokers = getattr(settings, "CELERY_BROKER_URL", None) or ()
    listed = [brokers] if isinstance(brokers, str) else list(brokers)
    urls = [part.strip() for url in listed for part in str(url).split(";")]
    ours = [url for url in urls if url.startswith("atomic+")]
    return str(getattr(settings, "ATOMIC_URL", None) or (ours[0] if ours else "atomic+django://default"))


def fleet_settings() -> config.Settings:
    """Return the settings of that fleet: the environment's, Celery's in Django's settings, ``settings.ATOMIC``.

    Raises:
        ConfigError: They are wrong, or do not fit each other.
    """
    from django.conf import settings

    names = [name for name in dir(settings) if name.startswith(_CELERYS)]
    celerys = {name[len(_CELERYS) :].lower(): getattr(settings, name) for name in names}
    return config.from_sources({}, celerys, config.django_keys())


def migrate(alias: str = "default") -> list[str]:
    """Create or upgrade the tables in the database that Django calls *alias*; return the names of the steps.

    For a ``RunPython`` of a Django migration: it joins the transaction of that. Settings are `fleet_settings`.
    """
    store = open_store(f"django://{alias}", fleet_settings())
    try:
        return store.schema.migrate()
    finally:
        store.close()


class DjangoGuest:
    """Django's connection of the present thread or asynchronous task, in whatever transaction that is.

    Args:
        find: Returns it.
    """

    is_home = True

    def __init__(self, find: Callable[[], BaseDatabaseWrapper]) -> None:
        self._find = find
        self.dialect: Dialect = "sqlite" if find().vendor == "sqlite" else "postgresql"
        self.is_sole = self.dialect == "sqlite" and find().is_in_memory_db()

    @property
    def in_transaction(self) -> bool:
        """Whether a block is open, or autocommit was turned off."""
        connection = self._find()
        return self.is_sole or connection.in_atomic_block or _is_manual(connection)

    @property
    def tells_commits(self) -> bool:
        """Whether a block is open; of manual commits Django tells nothing."""
        return bool(self._find().in_atomic_block)

    def run(self, statement: Statement, parameters: Parameters) -> Answer:
        """Run a statement as Django would; its errors are Django's."""
        connection = self._find()
        connection.validate_no_broken_transaction()
        connection.ensure_connection()
        with connection.wrap_database_errors:
            return guests.way_of(connection.connection).run(statement, parameters)

    def scope(self) -> Hashable:
        """Return which blocks are open."""
        connection = self._find()
        return connection.in_atomic_block, tuple(connection.savepoint_ids), _is_manual(connection)

    def wake_after_commit(self, wake: Wake, queue_ids: Iterable[int]) -> None:
        """Call *wake* when the outermost block has committed."""
        from django.db import transaction

        connection = self._find()
        alarm = _alarms.setdefault(connection, Alarm())
        alarm.add(wake, queue_ids)
        # Each publication asks for itself, so that none depends on one whose savepoint is rolled back; the first
        # of them that is called does it for all.
        transaction.on_commit(alarm.ring, using=connection.alias, robust=True)

    @contextmanager
    def apart(self) -> Iterator[Guest]:
        """Lend a second connection while a block is open on this one; SQLite has one writer at a time."""
        if self.dialect == "sqlite" or not self.in_transaction:
            yield self
            return
        copy = self._find().copy()
        try:
            yield DjangoGuest(lambda: copy)
        finally:
            copy.close()


_alarms: WeakKeyDictionary[Any, Alarm] = WeakKeyDictionary()


def _is_manual(connection: BaseDatabaseWrapper) -> bool:
    return connection.connection is not None and not connection.autocommit


def _connection(alias: str) -> Any:
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.db import connections
        from django.utils.connection import ConnectionDoesNotExist
    except ImportError as error:
        raise errors.ConfigError(f"atomic+django:// needs Django; {_INSTALL}") from error
    try:
        return connections[alias]
    except ConnectionDoesNotExist as error:
        known = ", ".join(sorted(connections))
        raise errors.ConfigError(f"Django's DATABASES has no {alias!r}; it has {known}") from error
    except ImproperlyConfigured as error:
        raise errors.ConfigError(
            f"atomic+django:// needs Django's settings: set DJANGO_SETTINGS_MODULE ({error})"
        ) from error
