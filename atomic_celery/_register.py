"""The names Celery and kombu know this package by, put into their registries; the only place that touches these.

kombu loads this module by entry point while it is itself being imported, in every process that uses Celery. So it
imports nothing but the two registries, and no failure of it may ever get out.
"""

from __future__ import annotations

import contextlib
import json
import sys

TRANSPORT = "atomic_celery.transport:Transport"
POOL = "atomic_celery.concurrency.prefork:TaskPool"
SCHEMES = (
    "atomic",
    "atomic+django",
    "atomic+postgres",
    "atomic+postgresql",
    "atomic+postgresql+psycopg",
    "atomic+postgresql+psycopg2",
    "atomic+sqlite",
)

#: What the entry point must be: a serializer, as kombu registers it. It is plain JSON, and nothing uses it.
serializer_args = (json.dumps, json.loads, "application/x-atomic-json", "utf-8")


def register() -> None:
    """Make the URLs and ``-P atomic`` known. Safe to repeat; never raises."""
    with contextlib.suppress(Exception):
        from kombu.transport import TRANSPORT_ALIASES

        for scheme in SCHEMES:
            TRANSPORT_ALIASES.setdefault(scheme, TRANSPORT)
    with contextlib.suppress(Exception):
        from celery.concurrency import ALIASES  # type: ignore[attr-defined]

        ALIASES.setdefault("atomic", POOL)
    with contextlib.suppress(Exception):
        # Only if it is there: to import it while kombu is being imported goes in circles, and leaves Celery in pieces.
        sys.modules["celery._state"].connect_on_app_finalize(_on_app)


def _on_app(_app: object) -> None:
    with contextlib.suppress(Exception):
        from atomic_celery import groups

        groups.install()
    with contextlib.suppress(Exception):
        from atomic_celery.worker import arrival

        arrival.watch()
