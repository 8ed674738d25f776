"""Every functional test that kombu has for its transports, on each database.

ATOMIC_KOMBU_CHECKOUT=/path/to/kombu pytest tests/kombu_suite -m external
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import kombu
import pytest

import atomic_celery  # noqa: F401 - bare kombu loads no entry points before it connects
from atomic_celery.config import Settings
from atomic_celery.store import open_store
from tests.kombu_suite.checkout import FILE, VARIABLE, common
from tests.support.daemons import free_port

pytestmark = [
    pytest.mark.external,
    # Theirs: a queue of theirs is called like none of ours, and they leave connections to the garbage collector.
    pytest.mark.filterwarnings("default"),
]

theirs: ModuleType | None = common()
_nothing = SimpleNamespace(
    BaseExchangeTypes=object,
    BaseFailover=object,
    BaseMessage=object,
    BasePriority=object,
    BaseTimeToLive=object,
    BasicFunctionality=object,
)
classes: Any = theirs or _nothing


def test_there_is_a_checkout() -> None:
    assert theirs is not None, f"set {VARIABLE} to a checkout of kombu: {FILE} is run from there"


@pytest.fixture
def migrated_url(database_url: str) -> str:
    store = open_store(database_url, Settings())
    store.schema.migrate()
    store.close()
    return f"atomic+{database_url}"


@pytest.fixture
def nowhere_url(database_url: str) -> str:
    if database_url.startswith("sqlite"):
        return "atomic+sqlite:////nowhere/atomic.db"
    return f"atomic+postgresql://postgres@127.0.0.1:{free_port()}/nowhere"


@pytest.fixture
def connection(migrated_url: str) -> Iterator[kombu.Connection]:
    with kombu.Connection(migrated_url) as connection:
        yield connection


@pytest.fixture
def invalid_connection(nowhere_url: str) -> Iterator[kombu.Connection]:
    with kombu.Connection(nowhere_url) as connection:
        yield connection


@pytest.fixture
def failover_connection(nowhere_url: str, migrated_url: str) -> Iterator[kombu.Connection]:
    with kombu.Connection(f"{nowhere_url};{migrated_url}", connect_timeout=10) as connection:
        yield connection


class TestBasicFunctionality(classes.BasicFunctionality):  # type: ignore[misc]
    pass


class TestExchangeTypes(classes.BaseExchangeTypes):  # type: ignore[misc]
    pass


class TestTimeToLive(classes.BaseTimeToLive):  # type: ignore[misc]
    pass


class TestPriority(classes.BasePriority):  # type: ignore[misc]
    PRIORITY_ORDER = "asc"  # 9 first


class TestMessage(classes.BaseMessage):  # type: ignore[misc]
    pass


class TestFailover(classes.BaseFailover):  # type: ignore[misc]
    pass
