"""Rows of django-celery-results and the end of a claim: one transaction where they are in one database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Signature, chord

from tests.results.conftest import DJANGO, NewFleet, in_django, require_once, signature
from tests.support.workers import HASTY, ROOT, Fleet

WAIT_S = 60


@pytest.fixture
def fleet(new_fleet: NewFleet, database_url: str) -> Iterator[Fleet]:
    """A fleet without a worker whose results are rows in its own database."""
    with in_django(database_url):
        made = new_fleet(results="atomic+django-db", conf={"worker_prefetch_multiplier": 1})
        made.env.update(DJANGO, TEST_ROWS=database_url)
        yield made


def _chord(fleet: Fleet) -> Signature[Any]:
    return chord([signature(fleet, "add", 1, 1), signature(fleet, "add", 2, 2)], signature(fleet, "whole"))


def _retry(fleet: Fleet) -> Signature[Any]:
    return signature(fleet, "retry", 1)


def _replaced(fleet: Fleet) -> Signature[Any]:
    return signature(fleet, "replaced", "chord", 5)


@pytest.mark.parametrize("point", ["settle.begun", "settle.turned", "settle.committing", "settle.committed"])
@pytest.mark.parametrize(
    ("publish", "visit", "expected", "once"),
    [(_chord, 2, [2, 4], {"body"}), (_retry, 1, 1, set()), (_replaced, 1, 10, {"replacement 0", "replacement 1"})],
    ids=["last chord part", "retry", "replace by a chord"],
)
def test_a_kill_leaves_no_half(
    fleet: Fleet, point: str, publish: Callable[[Fleet], Signature[Any]], visit: int, expected: Any, once: set[str]
) -> None:
    result = publish(fleet).delay()
    assert fleet.worker("w", faults=f"{point}=kill@{visit}", env=HASTY).start().wait() == -signal.SIGKILL
    fleet.worker("heir").start()
    assert result.get(timeout=WAIT_S) == expected
    fleet.wait_until(lambda: not fleet.unfinished())
    require_once(fleet, once)


def test_who_lost_its_lease_writes_no_row(fleet: Fleet) -> None:
    from django_celery_results.models import TaskResult

    result = signature(fleet, "gated_state", "g", str(fleet.directory)).delay()
    frozen = fleet.worker("frozen", env=HASTY).start()
    fleet.gate("g")
    frozen.freeze()
    heir = fleet.worker("heir").start()
    heir.wait_line("claimed", 60)
    fleet.gate("g", fence=2)
    fleet.open_gate("g")
    assert result.get(timeout=WAIT_S) == "2"
    frozen.signal(signal.SIGCONT)
    frozen.wait_line("lost")
    assert TaskResult.objects.get(task_id=result.id).result == '"2"'


def test_rows_in_another_database_are_written_before_the_task_is_settled(
    new_fleet: NewFleet, database_url: str, tmp_path: Path
) -> None:
    elsewhere = f"sqlite:///{tmp_path / 'rows.db'}"
    with in_django(elsewhere):
        fleet = new_fleet(results="atomic+django-db")
        fleet.env.update(DJANGO, TEST_ROWS=elsewhere)
        assert fleet.url == f"atomic+{database_url}"
        assert not fleet.app.backend.is_at_home
        result, whole = signature(fleet, "add", 1, 2).delay(), _chord(fleet).delay()
        worker = fleet.worker("w", faults="child.ended=stop").start()
        assert result.get(timeout=WAIT_S) == 3  # its body is over, and nobody has settled it
        assert fleet.unfinished() == 3
        assert worker.log.count("Results are kept in atomic+django-db, which is not where the messages are") == 1
        worker.close()
        fleet.worker("heir").start()
        assert whole.get(timeout=WAIT_S) == [2, 4]
        fleet.wait_until(lambda: not fleet.unfinished())


@pytest.mark.parametrize(
    ("settings", "says"),
    [("", "settings are not configured"), ("tests.results.bare_site", "in an application in INSTALLED_APPS")],
)
def test_what_is_missing_is_said(tmp_path: Path, settings: str, says: str) -> None:
    program = "from celery import Celery; Celery('x', broker='memory://', backend='atomic+django-db').backend"
    if settings:
        program = f"import django; django.setup(); {program}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": settings}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1].replace("\\", "")
    assert says in last
    assert "add 'django_celery_results' to INSTALLED_APPS" in last
