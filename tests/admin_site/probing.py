"""Run inside of the admin site's project: look at the overview while its database takes no writes; print what is said.

``readonly``: the server refuses them. ``locked``: somebody else is in the way of each.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import django

_ROW = "SELECT 1 FROM atomic_setting WHERE name = 'schema_version' FOR UPDATE"


@contextmanager
def readonly() -> Iterator[None]:
    """Let the server refuse every write of this process."""
    from django.db import connections

    from django_admin import project

    with connections[project.alias()].cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
        yield
        cursor.execute("SET default_transaction_read_only = off")


@contextmanager
def locked() -> Iterator[None]:
    """Let another connection hold what every write needs."""
    from django.db import connections

    from django_admin import project

    connection = connections[project.alias()]
    if connection.vendor == "sqlite":
        with closing(sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")
        return
    with closing(connection.Database.connect(**connection.get_connection_params())) as other, other.cursor() as cursor:
        cursor.execute(_ROW)
        yield
        other.rollback()


def main(trouble: str) -> None:
    """Look before, meanwhile and after."""
    django.setup()
    from django.contrib.auth.models import User
    from django.test import Client

    from django_admin import project

    client = Client()
    client.force_login(User.objects.create_superuser("ann"))

    def seen() -> dict[str, object]:
        said = project.write_trouble()  # which comes back although the lock stays
        page = client.get("/admin/atomic_fleet/overview/")
        text = page.content.decode()
        return {"said": said, "status": page.status_code, "text": text}

    before = seen()
    with {"readonly": readonly, "locked": locked}[trouble]():
        meanwhile = seen()
    print(json.dumps([before, meanwhile, seen()]))


if __name__ == "__main__":
    main(sys.argv[1])
