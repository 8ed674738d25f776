"""Tasks that are published in the protocol of Celery 3 are kept as well as any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from celery.exceptions import TaskRevokedError

from tests.support.workers import APPLICATION, Fleet

NOTE = f"{APPLICATION}.note"


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet that publishes in the old protocol."""
    with closing(Fleet(database_url, tmp_path, conf={"task_protocol": 1}, results=True)) as made:
        yield made


def test_a_delayed_task_waits_in_the_database_and_runs_once(fleet: Fleet) -> None:
    worker = fleet.worker().start()
    worker.wait_line("ready")
    for _ in range(2):  # a client that did not hear that the first one had arrived
        sent = fleet.app.send_task(NOTE, ("later",), countdown=3600, task_id="t1")
    [waiting] = fleet.store.reads.messages()
    assert (waiting.state, waiting.task_id, waiting.task_name) == ("delayed", "t1", NOTE)
    fleet.store.messages.hasten([waiting.id])
    sent.get(timeout=60)
    assert fleet.ledger.rows() == ["later"]


def test_an_expired_task_is_revoked(fleet: Fleet) -> None:
    sent = fleet.app.send_task(NOTE, ("too late",), expires=0.01)
    fleet.wait_until(lambda: (fleet.store.reads.messages()[0].expires_ms or 0) < fleet.store.now_ms())
    fleet.worker().start()
    with pytest.raises(TaskRevokedError, match="expired"):
        sent.get(timeout=60)
    assert fleet.ledger.rows() == []


def test_a_retry_takes_the_place_of_what_it_retries(fleet: Fleet) -> None:
    fleet.worker().start()
    assert fleet.send("retry", 2).get(timeout=60) == 2
    assert fleet.ledger.rows() == ["retry 0", "retry 1", "retry 2"]
    fleet.wait_until(lambda: not fleet.unfinished(), what="everything settled")
