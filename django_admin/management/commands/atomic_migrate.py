"""``manage.py atomic_migrate``: the fleet's tables, wherever they are."""

from __future__ import annotations

from django_admin import project
from django_admin.management.commands._plain import FleetCommand


class Command(FleetCommand):
    """Also for a database that Django does not know, which ``manage.py migrate`` cannot reach."""

    help = "Create the fleet's tables, or bring them to this release's version."

    def answer(self) -> tuple[object, list[str], bool]:
        """Run what has not run."""
        store = project.store()
        done = store.schema.migrate()
        lines = [f"ran {name}" for name in done] or ["nothing to do"]
        return {"ran": done, "version": store.schema.version()}, lines, True
