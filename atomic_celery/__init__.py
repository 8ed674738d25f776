"""Celery on a SQL database: messages are leased and fenced, so that no dead or frozen worker loses or repeats one.

Importing this package registers the ``atomic+…`` URLs and the pool, in case the installation lost the entry points
that do so by themselves.
"""

from __future__ import annotations

from atomic_celery import _register

__version__ = "0.1.0"

_register.register()
