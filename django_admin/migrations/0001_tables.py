"""The tables, by the package's own migrations; the models are unmanaged."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

from atomic_celery import django_connection
from django_admin import models, project


def make_tables(_apps: Any, schema_editor: Any) -> None:
    """Bring the tables to this release's version, where the fleet is and in this transaction."""
    if schema_editor.connection.alias == project.alias():
        django_connection.migrate(schema_editor.connection.alias)


def _unmanaged(model: Any) -> migrations.CreateModel:
    meta = model._meta
    return migrations.CreateModel(
        name=meta.object_name,
        fields=[(field.name, field.clone()) for field in meta.local_fields],
        options={name: value for name, value in meta.original_attrs.items() if name not in ("abstract", "app_label")},
    )


class Migration(migrations.Migration):
    """Also what a later release's first migration builds on."""

    initial = True
    operations: ClassVar = [
        migrations.RunPython(make_tables, migrations.RunPython.noop),
        *map(_unmanaged, (models.Overview, models.Host, models.Root, models.Message, models.FleetEvent, models.Term)),
    ]
