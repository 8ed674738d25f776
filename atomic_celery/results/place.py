"""Which database the results of an app go to, and whether that is where its messages are."""

from __future__ import annotations

from typing import Any

from atomic_celery import config, errors
from atomic_celery.results import listener
from atomic_celery.store import Store, StoreUrl
from atomic_celery.transport import broker
from atomic_celery.transport.address import url_of

TRANSPORT = "atomic"


class Place:
    """The database that an app's ``result_backend`` names.

    Args:
        url: Without ``atomic+`` in front; None: the broker's.

    Raises:
        ConfigError: The URL is wrong, or there is none and the broker is another kind of thing.
    """

    def __init__(self, app: Any, url: str | None) -> None:
        self._url = url
        home = _url_of_broker(app)
        if url is None and home is None:
            raise errors.ConfigError(
                'result_backend = "atomic" is the database of the broker, but broker_url is none of ours; '
                'say which one: "atomic+postgresql://…"'
            )
        self._settings = settings = _settings(app, "broker_transport_options")
        mine = settings if url is None else _settings(app, "result_backend_transport_options")
        self._broker = broker.borrow_url(url or home or "", mine)
        self.is_home = url is None or (home is not None and _journal(home, settings) == self.store.journal)

    @property
    def store(self) -> Store:
        """The tables."""
        return self._broker.store

    def is_at(self, url: str) -> bool:
        """Whether *url* names the same database, as far as it says so by the same words."""
        return _journal(url, self._settings) == self.store.journal

    def shown(self, *, reveal: bool) -> str:
        """Return the URL for people to read; a password only if asked for."""
        if self._url is None:
            return TRANSPORT
        return self.store.url.reveal() if reveal else str(self.store.url)

    def close(self) -> None:
        """Let go of the database. Safe in a finalizer."""
        listener.dismiss(self.store)
        broker.give_back(self._broker)


def _settings(app: Any, options: str) -> config.Settings:
    return config.from_sources(
        config.celery_keys(app.conf.get(options) or {}), config.celery_keys(app.conf), config.django_keys()
    )


def _url_of_broker(app: Any) -> str | None:
    client = app.connection_for_write()
    name = client.transport_cls if isinstance(client.transport_cls, str) else ""
    return url_of(client) if name.partition("+")[0] == TRANSPORT else None


def _journal(url: str, settings: config.Settings) -> str:
    return Store(StoreUrl.parse(url), settings).journal
