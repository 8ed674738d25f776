"""What the fleet's own commands have in common: ``--json``, and errors said once."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from atomic_celery import errors
from django_admin.pages import explained


class FleetCommand(BaseCommand):
    """A command about the fleet; exit code 1 when it could not do what it is for."""

    requires_system_checks = ()

    def add_arguments(self, parser: Any) -> None:
        """Take ``--json``."""
        parser.add_argument("--json", action="store_true", dest="as_json", help="Print JSON instead of text.")

    def handle(self, *_arguments: Any, as_json: bool = False, **_options: Any) -> None:
        """Run it, and say errors as Django does."""
        try:
            document, lines, healthy = self.answer()
        except (errors.AtomicError, DatabaseError) as error:
            raise CommandError(explained(error)) from error
        self.stdout.write(json.dumps(document, default=_plain, indent=2) if as_json else "\n".join(lines))
        if not healthy:
            raise CommandError("not everything is well: see above", returncode=1)

    def answer(self) -> tuple[object, list[str], bool]:
        """Return what it found: as a document, as lines, and whether all is well."""
        raise NotImplementedError


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(value) if hasattr(value, "keys") else str(value)
