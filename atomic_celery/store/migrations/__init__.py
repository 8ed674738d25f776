"""Numbered steps from nothing to today's tables: ``<dialect>/<number>_<stage>_<what>.sql``.

A *pre* step only adds: programs of the release before go on working, so it runs before the fleet is
upgraded. A *post* step removes what they needed, and runs after.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

from atomic_celery.store.urls import Dialect

_NAME = re.compile(r"(?P<number>\d{4})_(?P<stage>pre|post)_\w+\.sql\Z")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step."""

    number: int
    name: str
    additive: bool
    text: str


def load(dialect: Dialect) -> list[Migration]:
    """Return every migration of *dialect*, in order."""
    folder = resources.files(__name__) / dialect
    found = ((_NAME.match(file.name), file) for file in folder.iterdir())
    return sorted(
        (
            Migration(
                number=int(name["number"]),
                name=file.name.removesuffix(".sql"),
                additive=name["stage"] == "pre",
                text=file.read_text(encoding="utf-8"),
            )
            for name, file in found
            if name
        ),
        key=lambda migration: migration.number,
    )
