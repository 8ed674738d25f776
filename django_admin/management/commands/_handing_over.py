"""Commands of manage.py that are commands of ``celery -A proj atomic`` under another name."""

from __future__ import annotations

from collections.abc import Sequence

from django.core.management.base import BaseCommand

from atomic_celery import cli
from django_admin import project


class HandsOver(BaseCommand):
    """Hands its arguments over as they are: they are the other command's."""

    command: str | None = None
    """Which command that is; None: the arguments say so."""
    requires_system_checks = ()

    def run_from_argv(self, argv: Sequence[str]) -> None:
        """Run the other command with the arguments of this one."""
        cli.run(argv[2:], url=project.url(), name=f"{argv[0]} {argv[1]}", command=self.command)
