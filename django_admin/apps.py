"""The app's configuration."""

from __future__ import annotations

from django.apps import AppConfig

LABEL = "atomic_fleet"


class FleetConfig(AppConfig):
    """The app ``django_admin``; its permissions and pages are known as ``atomic_fleet``."""

    name = "django_admin"
    label = LABEL
    verbose_name = "Atomic fleet"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from django_admin import checks

        checks.install()
