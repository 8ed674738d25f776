"""``manage.py atomic_doctor``: everything that is wrong with the fleet's store, and how to mend it."""

from __future__ import annotations

from atomic_celery import django_connection, doctor
from django_admin import project
from django_admin.management.commands._plain import FleetCommand


class Command(FleetCommand):
    """The same as ``celery -A proj atomic doctor``, without Celery."""

    help = "Print the effective settings and everything that is wrong with the fleet's store."

    def answer(self) -> tuple[object, list[str], bool]:
        """Examine the store."""
        checkup = doctor.examine(project.url(), django_connection.fleet_settings())
        return checkup, doctor.text(checkup), checkup.healthy
