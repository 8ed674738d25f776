"""Every task, inspection and canvas test that Celery has for its brokers, on ours and on Redis.

ATOMIC_CELERY_CHECKOUT=/path/to/celery pytest tests/celery_suite -m external

It needs `redis-server` and what Celery's tests need: pytest-click, pytest-order, pytest-rerunfailures, tblib, pydantic,
redis < 8. What fails must be what docs/compatibility.md says fails, no more and no less.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from atomic_celery.config import Settings
from atomic_celery.store import open_store
from tests.benchmarks import servers
from tests.celery_suite.checkout import FILES, checkout
from tests.celery_suite.lanes import LANES, LONGEST_S, Lane, run
from tests.celery_suite.table import known_failures

pytestmark = [pytest.mark.external, pytest.mark.timeout(LONGEST_S + 60)]


@pytest.fixture
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with servers.redis(tmp_path_factory.mktemp("redis")) as port:
        yield port


@pytest.fixture
def migrated_url(postgres_url: str) -> str:
    store = open_store(postgres_url, Settings())
    store.schema.migrate()
    store.close()
    return f"atomic+{postgres_url}"


def test_there_is_a_checkout() -> None:
    checkout()


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("lane", LANES, ids=lambda lane: lane.name)
def test_what_fails_is_what_the_page_says(
    lane: Lane, file: str, migrated_url: str, redis_port: int, tmp_path: Path
) -> None:
    known = known_failures(lane.name, file)

    ended = run(lane, file, migrated_url, redis_port, tmp_path)

    failed = {test for test, ending in ended.items() if ending == "failed"}
    assert failed - known.keys() == set(), f"see {tmp_path}"
    assert {test for test, ending in known.items() if ending == "fails"} - failed == set(), f"see {tmp_path}"
    assert "passed" in ended.values()
