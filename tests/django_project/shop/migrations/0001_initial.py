from typing import ClassVar

from django.db import migrations, models

from atomic_celery import django_connection


def create_queue_tables(apps, schema_editor):
    django_connection.migrate(schema_editor.connection.alias)


class Migration(migrations.Migration):
    initial = True
    operations: ClassVar = [
        migrations.RunPython(create_queue_tables, migrations.RunPython.noop),
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("name", models.CharField(max_length=50)),
                ("handled", models.IntegerField(default=0)),
            ],
        ),
    ]
