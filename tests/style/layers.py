"""Imports point only down the layers that docs/architecture.md draws."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.style.sources import ROOT, Module

ROW = re.compile(r"^\| L(\d) [^|]*\| (?P<modules>[^|]*) \|", re.MULTILINE)
ENTRY_LAYER = 6
CELERY_LAYER = 5
CELERY = {"amqp", "billiard", "celery", "kombu", "vine"}
DRIVERS = {"psycopg", "psycopg2", "sqlalchemy", "sqlite3"}
KNOWS_DJANGO = "django_connection"
OPEN_TO_DJANGO = {
    *(
        "config",
        "django_connection",
        "doctor",
        "errors",
        "fleet",
        "history",
        "operations",
        "payload",
        "status",
        "store",
    ),
    *("store", "tables", "trouble"),
}
COMMANDS = "django_admin.management.commands."

Layers = dict[str, int]


def read_layers(text: str | None = None) -> Layers:
    """Return the layer of each part: `{"errors": 0, "store": 1, …}`."""
    text = text or (ROOT / "docs" / "architecture.md").read_text()
    section = text.partition("\n## 2. Layers")[2].partition("\n## ")[0]
    return {
        part: int(row[1])
        for row in ROW.finditer(section)
        for part in re.findall(r"`(\w+)/?`", re.sub(r"\([^)]*\)", "", row["modules"]))
    }


def violations(module: Module, layers: Layers) -> Iterator[str]:
    """Yield what *module* imports and must not."""
    if module.name.startswith("django_admin"):
        yield from _violations_of_django_admin(module)
        return
    part = _part_of(module.name)
    if part not in layers and part != "":
        yield f"{module.name}: docs/architecture.md does not say in which layer {part!r} is"
        return
    layer = layers.get(part, ENTRY_LAYER)
    for line, imported in module.imports():
        if reason := _forbidden(part, layer, imported, layers):
            yield f"{module.name}:{line}: {reason}"


def _forbidden(part: str, layer: int, imported: str, layers: Layers) -> str | None:
    package = imported.partition(".")[0]
    if package in CELERY and layer < CELERY_LAYER:
        return f"imports {package}, which only the layers L{CELERY_LAYER} and up know"
    if package in DRIVERS and part != "store":
        return f"imports {package}, which only store/ knows"
    if package in {"django", "django_admin"} and (part, package) != (KNOWS_DJANGO, "django"):
        return f"imports {package}, which only django_admin/ and {KNOWS_DJANGO} know"
    if package != "atomic_celery":
        return None
    other = _part_of(imported)
    other_layer = layers.get(other, ENTRY_LAYER)
    return f"L{layer} imports {imported} of L{other_layer}" if other_layer > layer else None


def _violations_of_django_admin(module: Module) -> Iterator[str]:
    for line, imported in module.imports():
        package = imported.partition(".")[0]
        if package in CELERY | DRIVERS:
            yield f"{module.name}:{line}: imports {package}; the admin works without it"
        elif module.name.startswith(COMMANDS) and _part_of(imported) == "cli":
            continue  # the command line is the same one
        elif package == "atomic_celery" and _part_of(imported) not in OPEN_TO_DJANGO:
            yield f"{module.name}:{line}: imports {imported}; open to it are {sorted(OPEN_TO_DJANGO)}"


def _part_of(name: str) -> str:
    return [*name.split("."), ""][1]
