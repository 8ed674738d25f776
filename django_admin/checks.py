"""What Django's system checks say of the fleet: ``manage.py check``, and with ``--database`` also of its tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from django.conf import settings
from django.core import checks
from django.db import DatabaseError, router

from atomic_celery import django_connection, errors
from django_admin import project
from django_admin.apps import LABEL

_EAGER = "CELERY_TASK_ALWAYS_EAGER"


def install() -> None:
    """Register the checks. Safe to repeat."""
    checks.register(check_settings, "atomic_fleet")
    checks.register(check_tables, checks.Tags.database)


def check_settings(**_options: Any) -> list[checks.CheckMessage]:
    """Look at the settings."""
    return [*_wrong(), *_elsewhere(), *_unrouted(), *_unfenced_results(), *_long_requests()]


def check_tables(databases: Sequence[str] | None = None, **_options: Any) -> list[checks.CheckMessage]:
    """Look at the tables, if the fleet is in one of these databases."""
    alias = project.alias()
    if not databases or alias not in databases or list(_wrong()):
        return []
    migrate = "Run: manage.py migrate" + (f" --database {alias}" if alias != "default" else "")
    store = project.store()
    try:
        with store.at_home():
            store.schema.require()
            behind = store.schema.plan()
    except errors.SchemaMismatch as error:
        return [_warning(2, error.what, migrate)]
    except (errors.AtomicError, DatabaseError):
        return []  # that it cannot be reached is for Django's own checks to say
    if behind:
        said = f"migrations of the fleet's tables have not run yet: {', '.join(behind)}"
        return [_warning(2, said, migrate)]
    return []


def _wrong() -> Iterator[checks.CheckMessage]:
    try:
        project.store()
    except errors.ConfigError as error:
        yield checks.Error(
            f"the fleet's settings are wrong: {error}",
            hint="Correct CELERY_BROKER_URL or ATOMIC_URL, the CELERY_ATOMIC_… settings, or ATOMIC.",
            id=f"{LABEL}.E001",
        )


def _elsewhere() -> Iterator[checks.CheckMessage]:
    """Compare the database that the app's broker is with the one that the pages show."""
    for broker in _brokers():
        if not broker.startswith("atomic+"):
            said = "the Celery app's broker_url is none of atomic_celery's: its tasks never come to this fleet"
            yield _warning(1, said, 'Set CELERY_BROKER_URL = "atomic+django://default".')
        elif (meant := _journal(broker)) and (shown := _journal(project.url())) and meant != shown:
            yield _warning(
                1,
                f"the Celery app's broker is in {meant}, and the pages show {shown}",
                "Let ATOMIC_URL and CELERY_BROKER_URL name the same database, or set only CELERY_BROKER_URL.",
            )


def _brokers() -> list[str]:
    """Return what the project's Celery app, if it was made already, calls its broker; else what the settings say."""
    state = sys.modules.get("celery._state")
    apps = list(state._get_active_apps()) if state is not None else []
    made = [app.conf.broker_url for app in apps if app.configured and app.main not in (None, "default", "__main__")]
    said = made or [getattr(settings, "CELERY_BROKER_URL", None)]
    return [str(url).split(";")[0] for url in said if isinstance(url, str) and url]


def _journal(url: str) -> str | None:
    """Name the database that a URL means, however it is written; no password is in it."""
    from atomic_celery.store import open_store

    try:
        opened = open_store(url, django_connection.fleet_settings())
    except errors.ConfigError:
        return None  # said by E001, or by the worker
    return opened.journal


def _unrouted() -> Iterator[checks.CheckMessage]:
    alias = project.alias()
    if alias in (None, "default"):
        return
    from django_admin import models

    if router.db_for_read(models.Host) != alias:
        yield _warning(
            5,
            f"the fleet is in the database {alias!r}, and no router says so for its models",
            'Add "django_admin.routers.FleetRouter" to DATABASE_ROUTERS.',
        )


def _unfenced_results() -> Iterator[checks.CheckMessage]:
    backend = getattr(settings, "CELERY_RESULT_BACKEND", None)
    if isinstance(backend, str) and backend and not backend.startswith(("atomic", "disabled")):
        scheme = backend.partition("://")[0].partition(":")[0]
        yield _warning(
            3,
            f"the result backend {scheme!r} stores results apart from the claims of their tasks: a worker that has "
            "lost its lease can still write one, and a result and the end of its task may come apart",
            'Set CELERY_RESULT_BACKEND = "atomic" or "atomic+django-db", '
            f"or silence this with SILENCED_SYSTEM_CHECKS = ['{LABEL}.W003'].",
        )


def _long_requests() -> Iterator[checks.CheckMessage]:
    alias = project.alias()
    requests = alias is not None and settings.DATABASES.get(alias, {}).get("ATOMIC_REQUESTS")
    if requests and getattr(settings, _EAGER, False):
        yield _warning(
            4,
            f"{_EAGER} runs tasks inside of their request, and ATOMIC_REQUESTS keeps a transaction open for as long",
            f"Turn {_EAGER} off outside of tests, or ATOMIC_REQUESTS.",
        )
    elif requests:
        yield checks.Info(
            "with ATOMIC_REQUESTS a task exists once its request has ended: no view can wait for its result",
            hint="Send it in a view with @transaction.non_atomic_requests, if that view has to wait for it.",
            id=f"{LABEL}.I001",
        )


def _warning(number: int, said: str, hint: str) -> checks.Warning:
    return checks.Warning(said, hint=hint, id=f"{LABEL}.W{number:03}")
