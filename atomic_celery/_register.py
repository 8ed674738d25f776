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
_APPS = "celery.app.base"
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
    if _APPS in sys.modules:
        _watch_apps()
    elif not any(isinstance(finder, _Lookout) for finder in sys.meta_path):
        sys.meta_path[:0] = [_Lookout(_APPS, _watch_apps), _Lookout("celery.canvas", _change_groups)]


class _Lookout:
    """Sees a module of Celery's come, from `sys.meta_path`, and finds nothing itself.

    To import anything of Celery while kombu is being imported goes in circles, and leaves Celery in pieces.

    Args:
        call: What is done once the module is there.
    """

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name, self._call = name, call

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Take note of what is imported."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        return _then(find_spec(name), self._call)


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
    """Let apps send their tasks under limits, and hear of each that is complete."""
    with contextlib.suppress(Exception):
        sys.modules["celery._state"].connect_on_app_finalize(_on_app)
    if hasattr(sys.modules[_APPS], "Celery"):
        _know_limits()
    else:
        _know_limits_from_the_first_app_on()


def _know_limits() -> None:
    with contextlib.suppress(Exception):
        from atomic_celery import sending

        sending.install()


def _know_limits_from_the_first_app_on() -> None:
    """Wait for an app to be made: the class of apps is just being defined."""
    with contextlib.suppress(Exception):
        state: Any = sys.modules["celery._state"]
        register_app = state._register_app

        def hear(app: object) -> None:
            _know_limits()
            register_app(app)

        state._register_app = hear


def _change_groups() -> None:
    with contextlib.suppress(Exception):
        from atomic_celery import groups

        groups.install()


def _on_app(_app: object) -> None:
    _change_groups()
    with contextlib.suppress(Exception):
        from atomic_celery.worker import arrival

        arrival.watch()
