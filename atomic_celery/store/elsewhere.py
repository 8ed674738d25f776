"""Databases that a framework knows by a name of its own, and connects to by itself.

The framework is imported when such a URL is met, never before; kombu finds its transports in the same way.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from atomic_celery.store.guests import Guest
    from atomic_celery.store.urls import StoreUrl

_FRAMEWORKS = {"django": "atomic_celery.django_connection"}


class Framework(Protocol):
    """The module that knows one."""

    def locate(self, name: str) -> StoreUrl:
        """Return the database that the framework calls *name*.

        Raises:
            ConfigError: It knows none, or is not there or not set up.
        """
        ...

    def guest_finder(self, name: str) -> Callable[[], Guest | None]:
        """Return what finds the framework's own connection to that database in the present context."""
        ...


def framework_of(scheme: str) -> Framework | None:
    """Return the framework whose databases *scheme* means; None: it is an ordinary URL's."""
    module = _FRAMEWORKS.get(scheme)
    return None if module is None else cast(Framework, importlib.import_module(module))


def guest_finder(alias: str) -> Callable[[], Guest | None]:
    """Return what finds the connection of the framework that *alias* is a URL of."""
    scheme, _, name = alias.partition("://")
    framework = framework_of(scheme)
    assert framework is not None
    return framework.guest_finder(name)
