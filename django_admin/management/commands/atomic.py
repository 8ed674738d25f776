"""``manage.py atomic …``: everything of ``celery -A proj atomic …``."""

from __future__ import annotations

from collections.abc import Sequence

from django.core.management.base import BaseCommand

from atomic_celery import cli
from django_admin import project


class Command(BaseCommand):
    """Hands its arguments over as they are: they are the other command's."""

    help = "Look after the fleet: everything of `celery -A proj atomic`."
    requires_system_checks = ()

    def run_from_argv(self, argv: Sequence[str]) -> None:
        """Run the command that is named behind ``atomic``."""
        cli.run(argv[2:], url=project.url(), name=f"{argv[0]} {argv[1]}")

    def handle(self, *arguments: str, **_options: object) -> None:
        """Do the same for ``call_command``."""
        cli.run(arguments, url=project.url(), name="manage.py atomic")
