"""Ordinary messages take the short way, others Celery's own, and nobody can tell by the outcome."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.workers import APPLICATION, Fleet


def test_failures_on_the_short_way_know_their_arguments(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    fleet.worker().start()
    errback = fleet.app.signature(f"{APPLICATION}.note_failure", args=())
    result = fleet.app.signature(f"{APPLICATION}.die_once").apply_async(link_error=errback)
    rows = fleet.wait_done(2)
    assert rows[0] == "die_once"
    assert rows[1] == f"failed {result.id} WorkerLostError"


def test_a_hard_time_limit_fails_the_task_and_tells_its_error_callback(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    fleet.worker().start()
    errback = fleet.app.signature(f"{APPLICATION}.note_failure", args=())
    gate = fleet.app.signature(f"{APPLICATION}.gate", args=("g", str(fleet.directory)))
    result = gate.apply_async(time_limit=0.5, link_error=errback)
    fleet.wait_until(lambda: result.state == "FAILURE", what="the result says so")
    fleet.wait_until(lambda: not fleet.unfinished(), what="all is settled")
    assert fleet.send("add", 1, 2).get(timeout=60) == 3, "the child is replaced: all that its end brings about is over"
    assert fleet.ledger.rows() == [f"failed {result.id} TimeLimitExceeded"], "called once"


def test_a_soft_time_limit_is_an_exception_in_the_task(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    fleet.worker().start()
    result = fleet.app.signature(f"{APPLICATION}.gate", args=("g", str(fleet.directory))).apply_async(
        soft_time_limit=0.5
    )
    with pytest.raises(Exception, match="SoftTimeLimitExceeded"):
        result.get(timeout=60)


@pytest.mark.parametrize(
    ("conf", "options"),
    [
        ({"task_serializer": "pickle", "accept_content": ["json", "pickle"]}, {}),
        ({"task_protocol": 1}, {}),
        ({"task_compression": "gzip"}, {}),
        ({}, {"countdown": 0.2}),
        ({}, {"expires": 3600}),
        ({}, {"shadow": "another-name"}),
        ({}, {"argsrepr": "secret"}),
    ],
    ids=["pickle", "protocol-1", "compressed", "delayed", "expiring", "shadowed", "hidden-arguments"],
)
def test_every_kind_of_message_runs(
    database_url: str, tmp_path: Path, conf: dict[str, Any], options: dict[str, Any]
) -> None:
    with closing(Fleet(database_url, tmp_path, conf=conf, results=True)) as fleet:
        fleet.worker().start()
        result = fleet.send("add", 1, 2, **options)
        assert result.get(timeout=60) == 3
        fleet.wait_until(lambda: not fleet.unfinished(), what="it is settled")


def test_events_tell_the_story_of_a_task(fleet: Fleet) -> None:
    worker = fleet.worker(options=("-E",)).start()
    worker.wait_line("ready")
    story: list[str] = []

    def hear(event: dict[str, Any]) -> None:
        story.append(event["type"])
        if event["type"] == "task-succeeded":
            receiver.should_stop = True

    fleet.app.conf.event_queue_ttl = 60.0  # Celery's own: who does not look for 5 s misses what was told
    with fleet.app.connection_for_read() as connection:
        receiver = fleet.app.events.Receiver(
            connection, handlers={"task-received": hear, "task-started": hear, "task-succeeded": hear}
        )
        receiver.on_consume_ready = lambda *_args, **_options: fleet.send("note", "n")
        receiver.capture(limit=None, timeout=60, wakeup=False)
    assert story == ["task-received", "task-started", "task-succeeded"]


def test_a_request_on_the_short_way_has_all_that_receivers_of_signals_may_look_at(
    database_url: str, tmp_path: Path
) -> None:
    with closing(Fleet(database_url, tmp_path, application="tests.worker.curious")) as fleet:
        fleet.worker(env={"TEST_DIFFERENCES": str(tmp_path / "differences")}).start()
        fleet.app.send_task("tests.support.application.note", args=("n",))
        assert fleet.wait_done(1) == ["n"]
        found = json.loads((tmp_path / "differences").read_text())
        assert "_Request__payload" in found["compared"]
        assert found["differing"] == []
