"""``manage.py fleet_status``: the fleet at a glance."""

from __future__ import annotations

from atomic_celery import status
from django_admin import project
from django_admin.management.commands._plain import FleetCommand


class Command(FleetCommand):
    """The same as ``celery -A proj atomic status``, without Celery."""

    help = "Show the fleet, its hosts and its queues."

    def answer(self) -> tuple[object, list[str], bool]:
        """Read the fleet."""
        seen = status.read(project.store())
        return seen, status.text(seen), True
