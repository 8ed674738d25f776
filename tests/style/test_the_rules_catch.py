"""Each rule finds what it is there to find: shown on small samples that break it."""

from __future__ import annotations

import pytest

from tests.style import layers, rules
from tests.style.sources import Module, SqlFile

LAYERS = layers.read_layers(
    """
## 2. Layers
| layer | modules | knows |
|---|---|---|
| L0 facts | `errors` `clock` | nothing |
| L1 storage | `config`, `store/` (`engine`, `sql/*.sql`) | SQL |
| L2 holding | `lease` (`Lease`, `LeaseKeeper`) | time |
| L5 celery | `transport/` (`qos`) | celery |

## 3. Tables
| L9 not this | `tables` | |
"""
)


def test_layers_are_read_from_the_architecture_page() -> None:
    assert LAYERS == {"errors": 0, "clock": 0, "config": 1, "store": 1, "lease": 2, "transport": 5}


@pytest.mark.parametrize(
    ("name", "source", "found"),
    [
        ("atomic_celery.errors", "import atomic_celery.config", "L0 imports atomic_celery.config of L1"),
        ("atomic_celery.errors", "from atomic_celery import config", "L0 imports atomic_celery.config of L1"),
        ("atomic_celery.errors", "from . import config", "L0 imports atomic_celery.config of L1"),
        ("atomic_celery.store.engine", "from ..lease import Lease", "of L2"),
        ("atomic_celery.lease", "def f():\n    import atomic_celery.transport.qos", "L2 imports"),
        ("atomic_celery.lease", "from atomic_celery import __version__", "of L6"),
        ("atomic_celery.lease", "import kombu.utils", "imports kombu"),
        ("atomic_celery.transport.qos", "import sqlalchemy", "only store/ knows"),
        ("atomic_celery.store.engine", "from django.db import connection", "only django_admin/ and django_connection"),
        ("atomic_celery.unknown", "", "does not say in which layer 'unknown' is"),
        ("django_admin.admin", "import celery", "the admin works without it"),
        ("django_admin.admin", "from atomic_celery import lease", "open to it are"),
    ],
)
def test_an_import_that_points_up(name: str, source: str, found: str) -> None:
    [violation] = layers.violations(Module(name, source), LAYERS)
    assert found in violation


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("atomic_celery", "from atomic_celery.transport import Transport\nimport celery"),
        ("atomic_celery.store", "from . import engine"),
        ("atomic_celery.store.engine", "import sqlalchemy\nfrom atomic_celery.errors import StoreError"),
        ("atomic_celery.transport.qos", "import kombu\nfrom .. import lease"),
        ("django_admin.models", "from django.db import models\nfrom atomic_celery import operations"),
    ],
)
def test_an_import_that_points_down(name: str, source: str) -> None:
    assert not list(layers.violations(Module(name, source, is_package=source.startswith("from . ")), LAYERS))


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time as t\nt.sleep(1)",
        "from time import monotonic",
        "from time import sleep as rest\nrest(1)",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndef f(now=datetime.utcnow): ...",
    ],
)
def test_a_clock_read_outside_the_clock(source: str) -> None:
    if "monotonic" in source:
        source += "\nmonotonic()"
    assert len(list(rules.clock_readers(Module("atomic_celery.lease", source)))) == 1
    assert not list(rules.clock_readers(Module("atomic_celery.clock", source)))


def test_a_clock_that_was_handed_in_may_be_read() -> None:
    source = "import time\ndef f(clock, time_s):\n    return clock.time(), clock.sleep(time_s), time.strftime('')"
    assert not list(rules.clock_readers(Module("atomic_celery.lease", source)))


@pytest.mark.parametrize("size", [50, 51])
def test_a_function_that_is_too_long(size: int) -> None:
    source = "class C:\n    def f(self):\n" + "        pass\n" * (size - 1)
    assert len(list(rules.long_functions(Module("atomic_celery.lease", source)))) == (size > 50)


@pytest.mark.parametrize("size", [400, 401])
def test_a_module_that_is_too_long(size: int) -> None:
    assert len(list(rules.long_modules(Module("atomic_celery.lease", "pass\n" * size)))) == (size > 400)


@pytest.mark.parametrize("name", ["atomic_celery.utils", "atomic_celery.store.job_store", "django_admin.helpers"])
def test_a_name_with_a_banned_word(name: str) -> None:
    assert len(list(rules.banned_names(Module(name, "")))) == 1


@pytest.mark.parametrize("name", ["atomic_celery.clock", "atomic_celery.store.messages"])
def test_a_name_of_the_vocabulary(name: str) -> None:
    assert not list(rules.banned_names(Module(name, "")))


@pytest.mark.parametrize(
    "statement",
    ["SELECT 1", "\n  DELETE FROM t", "UPDATE t SET a = 1", "WITH a AS (SELECT 1)", "CREATE TABLE t ()"],
)
def test_a_statement_in_python(statement: str) -> None:
    source = f"run({statement!r})"
    assert len(list(rules.sql_in_python(Module("atomic_celery.cli", source)))) == 1
    assert not list(rules.sql_in_python(Module("atomic_celery.store.engine", source)))


def test_a_sentence_is_no_statement() -> None:
    source = '"""Select a queue, update the set, with a lease as proof."""\nx = "Delete from here"'
    assert not list(rules.sql_in_python(Module("atomic_celery.cli", source)))


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM atomic_claim WHERE message_id = :id",
        "-- its fence was checked before\nUPDATE atomic_claim SET lease_until_ms = 1",
        "WITH gone AS (delete from atomic_step where id = 1) SELECT 1",
        "INSERT INTO atomic_effect VALUES (:id)",
    ],
)
def test_a_statement_without_its_fence(statement: str) -> None:
    file = SqlFile("messages.sql", f"-- name: other :many\nSELECT fence\n-- name: bad :exec\n{statement};\n")
    assert list(rules.unfenced_statements(file)) == [
        "messages.sql: bad changes what is held and does not mention the fence"
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM atomic_claim WHERE message_id = :id AND fence = :fence",
        "DELETE FROM atomic_ready WHERE message_id = :id",
        "SELECT * FROM atomic_claim",
        "-- unfenced: the queue goes, and all that is in it\nDELETE FROM atomic_claim WHERE queue_id = :id",
    ],
)
def test_a_statement_that_is_in_order(statement: str) -> None:
    assert not list(rules.unfenced_statements(SqlFile("messages.sql", f"-- name: good :exec\n{statement};\n")))
