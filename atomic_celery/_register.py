"""The names Celery and kombu know this package by, put into their registries; the only place that touches these.

kombu loads this module by entry point while it is itself being imported, in every process that uses Celery. So it
imports nothing but the two registries, and no failure of it may ever get out.
"""

from __future__ import annotations

import contextlib
import json
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType

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
    if "celery.app.base" in sys.modules:
        _watch_apps()
    elif not any(isinstance(finder, _Lookout) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Lookout())


class _Lookout:
    """Sees Celery come, from `sys.meta_path`, and finds nothing itself.

    To import anything of Celery while kombu is being imported goes in circles, and leaves Celery in pieces. But whoever
    wants the module of its apps has all that they need for being watched; and its canvas is changed once it is there.
    """

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Take note of what is imported."""
        if name == "celery.app.base":
            _watch_apps()
        elif name == "celery.canvas":
            sys.meta_path.remove(self)
            return _then(find_spec(name), _change_groups)
        return None


def _then(spec: ModuleSpec | None, call: Callable[[], None]) -> ModuleSpec | None:
    """Have *call* called after a module is there."""
    loader: Any = spec and spec.loader
    if loader is not None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            call()

        loader.exec_module = exec_module
    return spec


def _watch_apps() -> None:
    with contextlib.suppress(Exception):
        sys.modules["celery._state"].connect_on_app_finalize(_on_app)


def _change_groups() -> None:
    with contextlib.suppress(Exception):
        from atomic_celery import groups

        groups.install()


def _on_app(_app: object) -> None:
    _change_groups()
    with contextlib.suppress(Exception):
        from atomic_celery.worker import arrival

        arrival.watch()
