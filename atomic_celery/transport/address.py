"""Which database a kombu connection means, and with what settings; kombu takes URLs apart before it asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from atomic_celery import config, errors
from atomic_celery.store.urls import StoreUrl

if TYPE_CHECKING:
    from kombu import Connection

_OUR_PREFIX = "atomic+"


def url_of(client: Connection) -> str:
    """Return the database URL of *client*, secrets included.

    kombu hands over the first URL whole, but for what stands before its first ``+``; the alternates of a URL with
    ``;`` in it come in pieces.
    """
    hostname = (client.hostname or "").removeprefix(_OUR_PREFIX)
    if "://" in hostname:
        return hostname
    scheme = str(client.transport_cls).removeprefix(_OUR_PREFIX)
    if scheme == "sqlite":
        return f"sqlite:///{quote(client.virtual_host or '')}"
    login = quote(client.userid or "", safe="")
    if client.password:
        login += f":{quote(client.password, safe='')}"
    port = f":{client.port}" if client.port else ""
    database = quote((client.virtual_host or "").lstrip("/"), safe="")
    return f"{scheme}://{login}{'@' if login else ''}{hostname}{port}/{database}"


def shown(client: Connection, *, reveal: bool = False) -> str:
    """Return the URL of *client* for people to read; its secrets are masked unless they are asked for."""
    try:
        url = StoreUrl.parse(url_of(client))
    except errors.ConfigError:
        return f"{_OUR_PREFIX}invalid://"  # whatever is wrong with it, it may hold a password
    return url.reveal() if reveal else str(url)


def settings_of(client: Connection) -> config.Settings:
    """Return the settings for *client*: its ``atomic_…`` transport options, the environment, the Celery app's."""
    return config.from_sources(
        config.celery_keys(client.transport_options or {}), _app_keys(client), config.django_keys()
    )


def _app_keys(client: Connection) -> dict[str, Any]:
    app = _app_of(client)
    return {} if app is None else config.celery_keys(app.conf)


def _app_of(client: Connection) -> Any:
    """Find the Celery app that made *client*; kombu was not told.

    The app is current in the thread that made it only, so that elsewhere it has to be looked for.
    """
    from celery import _state

    state: Any = _state
    current = state._tls.current_app or state.default_app
    active = list(state._get_active_apps())
    apps = active if current is None else [current, *active]
    likely = current if current is not None or len(active) != 1 else active[0]
    return next((app for app in apps if _is_broker_of(app.conf, client)), likely)


def _is_broker_of(conf: Mapping[str, Any], client: Connection) -> bool:
    url = url_of(client)
    return any(url in str(conf.get(key) or "") for key in ("broker_url", "broker_write_url", "broker_read_url"))
