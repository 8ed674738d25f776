"""What one run of a command works with: the app's database, the settings, and the way out."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from atomic_celery import config, errors
from atomic_celery.cli import database_options
from atomic_celery.cli.output import Output
from atomic_celery.lines import Lines

if TYPE_CHECKING:
    from celery import Celery

    from atomic_celery.store.store import Store

Command = TypeVar("Command", bound=Callable[..., Any])

_KEY = "atomic_celery.session"
_SCHEME = "atomic+"


class Session:
    """The app, the group's options, and a store that is opened once and when it is first asked for."""

    def __init__(self, app: Celery, options: Mapping[str, Any], output: Output) -> None:
        self._app, self._options = app, dict(options)
        self._store: Store | None = None
        self.output = output

    @functools.cached_property
    def settings(self) -> config.Settings:
        """The effective settings: options, environment, Celery configuration, defaults."""
        return config.from_sources(self._options, config.celery_keys(self._app.conf), config.django_keys())

    def choose(self, **options: Any) -> None:
        """Add options of a command to those of the group, before anybody asks for the settings."""
        self._options.update(options)

    @functools.cached_property
    def lines(self) -> Lines:
        """Event lines on stdout, for a command that goes on."""
        return Lines(sys.stdout, as_json=self.output.as_json)

    @functools.cached_property
    def url(self) -> str:
        """The first ``atomic+…`` URL among the app's brokers.

        Raises:
            ConfigError: There is none. No part of what is there is repeated: it may hold a password.
        """
        for url in _broker_urls(self._app.conf.broker_url):
            if url.startswith(_SCHEME):
                return url
        raise errors.ConfigError(
            "broker_url names no atomic_celery database; it should look like atomic+postgresql://user@host/db "
            "(set it in the app, in CELERY_BROKER_URL, or with celery -b URL)"
        )

    @property
    def store(self) -> Store:
        """The app's store."""
        if self._store is None:
            from atomic_celery.store import open_store

            self._store = open_store(self.url, self.settings)
        return self._store

    def close(self) -> None:
        """Let go of the database."""
        if self._store is not None:
            self._store.close()


def session_of(ctx: click.Context) -> Session:
    """Return the session of the command that runs in *ctx*."""
    session: Session = ctx.meta[_KEY]
    return session


def begin(ctx: click.Context, options: Mapping[str, str | None]) -> None:
    """Begin the session of *ctx*; it ends with the group's context."""
    celery = ctx.obj
    session = Session(celery.app, options, Output(no_color=bool(celery.no_color)))
    ctx.meta[_KEY] = session
    ctx.call_on_close(session.close)


def command(function: Command) -> Command:
    """Pass the session first, and take ``--json`` and what the group takes."""

    @database_options.accept
    @click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
    @click.pass_context
    @functools.wraps(function)
    def with_session(ctx: click.Context, /, as_json: bool, **arguments: Any) -> Any:
        session = session_of(ctx)
        session.output.as_json = as_json
        session.choose(**database_options.taken(arguments))
        return function(session, **arguments)

    return with_session  # type: ignore[return-value]


def _broker_urls(configured: Any) -> list[str]:
    urls = [configured] if isinstance(configured, str) else list(configured or ())
    return [part.strip() for url in urls for part in str(url).split(";")]
