"""A database router for a fleet that is not in Django's ``default`` database."""

from __future__ import annotations

from typing import Any

from django_admin import project
from django_admin.apps import LABEL


class FleetRouter:
    """Sends the fleet's models to the fleet's database, and makes tables there only.

    ``DATABASE_ROUTERS = ["django_admin.routers.FleetRouter"]``; other apps' models are none of its business.
    """

    def db_for_read(self, model: Any, **_hints: Any) -> str | None:
        """Return the fleet's database for its own models."""
        return project.alias() if model._meta.app_label == LABEL else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **_hints: Any) -> bool | None:
        """Let the fleet's tables be made where the fleet is."""
        return db == project.alias() if app_label == LABEL else None
