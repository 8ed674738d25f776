"""The result backend ``atomic``: what tasks came to, committed together with their end."""

from __future__ import annotations

from atomic_celery.results.backend import Backend

__all__ = ["Backend"]
