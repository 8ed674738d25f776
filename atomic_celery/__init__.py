"""Celery on a SQL database: messages are leased and fenced, so that no dead or frozen worker loses or repeats one.

Importing this package registers the ``atomic+…`` URLs and the pool, in case the installation lost the entry points
that do so by themselves.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from atomic_celery import _register

if TYPE_CHECKING:
    from atomic_celery.controlling import fleet_controller
    from atomic_celery.publishing import bulk, publish_many, publishing_in
    from atomic_celery.roots import Budget, Root, root

_HOMES = {
    "Budget": "roots",
    "Root": "roots",
    "bulk": "publishing",
    "fleet_controller": "controlling",
    "publish_many": "publishing",
    "publishing_in": "publishing",
    "root": "roots",
}
__all__ = ["Budget", "Root", "bulk", "fleet_controller", "publish_many", "publishing_in", "root"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # kombu imports this package while it is itself being imported, so what needs Celery is imported later.
    if name in _HOMES:
        return getattr(importlib.import_module(f"atomic_celery.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_register.register()
