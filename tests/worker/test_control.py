"""Remote control of a worker."""

from __future__ import annotations

import json
import signal
from datetime import datetime, timedelta, timezone

import pytest

import atomic_celery
from tests.support.workers import APPLICATION, Fleet

HOST = "w@test"

DELAY_S = 10
"""Long enough for all that a test sends meanwhile, on a machine that has other things to do."""


def test_inspect_scheduled_shows_what_waits_in_the_database(fleet: Fleet) -> None:
    fleet.worker().start().wait_line("ready")
    sent = [fleet.send("note", f"later{number}", countdown=3600 + number) for number in range(3)]
    fleet.wait_until(lambda: len(fleet.store.reads.messages()) == 3, what="they are stored")
    answer = fleet.app.control.inspect(timeout=60, destination=[HOST]).scheduled()
    assert [entry["request"]["id"] for entry in answer[HOST]] == [each.id for each in sent]
    assert answer[HOST][0]["request"]["name"].endswith("note")
    assert "T" in answer[HOST][0]["eta"]


def test_inspect_stats_names_the_host_and_no_secret(fleet: Fleet) -> None:
    host = fleet.worker().start().wait_line("ready")["host"]
    answer = fleet.app.control.inspect(timeout=60, destination=[HOST]).stats()
    assert answer[HOST]["atomic"]["host"] == host
    password = fleet.store.url.password
    assert not password or password not in json.dumps(answer)
    assert answer[HOST]["broker"]["hostname"] == str(fleet.store.url)


def test_inspect_active_shows_what_runs(fleet: Fleet) -> None:
    fleet.worker().start()
    result = fleet.send("gate", "g", str(fleet.directory))
    pid = fleet.gate("g")
    [active] = fleet.app.control.inspect(timeout=60, destination=[HOST]).active()[HOST]
    assert (active["id"], active["worker_pid"], active["acknowledged"]) == (result.id, pid, False)
    fleet.open_gate("g")


def test_a_revoked_task_never_runs_also_after_a_restart(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    result = fleet.send("note", "never")
    fleet.app.control.revoke(result.id)
    fleet.send("note", "always")
    fleet.worker().start()
    assert fleet.wait_done(1) == ["always"]
    fleet.wait_until(lambda: result.state == "REVOKED", what="the result says so")
    fleet.wait_until(lambda: not fleet.unfinished(), what="all is settled")
    assert fleet.ledger.rows() == ["always"]


@pytest.mark.parametrize("terminate", [False, True])
def test_a_great_many_are_revoked_together_and_the_worker_goes_on(fleet_with_results: Fleet, terminate: bool) -> None:
    fleet = fleet_with_results
    fleet.worker(slots=1).start().wait_line("ready")
    ended = fleet.send("add", 1, 1)
    assert ended.get(timeout=60) == 2
    running = fleet.send("gate", "runs", str(fleet.directory))
    fleet.gate("runs")
    waiting = [fleet.send("note", f"never {number}") for number in range(3)]
    known = [result.id for result in (ended, running, *waiting)]
    unknown = [f"unknown-{number}" for number in range(20_000)]
    fleet.app.control.revoke([*known, *unknown], terminate=terminate)
    assert fleet.app.control.broadcast("ping", reply=True, timeout=60, limit=1) == [{"w@test": {"ok": "pong"}}]
    fleet.open_gate("runs")
    fleet.wait_until(lambda: not fleet.unfinished(), what="all is settled")
    assert ended.state == "SUCCESS"
    assert running.state == ("REVOKED" if terminate else "SUCCESS")
    assert {result.state for result in waiting} == {"REVOKED"}
    assert fleet.ledger.rows() == ([] if terminate else ["runs"])
    last = fleet.app.AsyncResult(max(unknown))
    fleet.wait_until(lambda: last.state == "REVOKED", what="whoever waits for them is told")


def test_a_task_revoked_by_its_stamp_never_runs_also_after_a_restart(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    stamped = fleet.app.signature("tests.support.application.note", args=("never",))
    stamped.stamp(batch="b1")
    result = stamped.apply_async()
    fleet.app.control.revoke_by_stamped_headers({"batch": ["b1", "b2"]})
    fleet.send("note", "always")
    fleet.worker().start()
    assert fleet.wait_done(1) == ["always"]
    fleet.wait_until(lambda: result.state == "REVOKED", what="the result says so")
    fleet.wait_until(lambda: not fleet.unfinished(), what="all is settled")
    assert fleet.ledger.rows() == ["always"]


@pytest.mark.parametrize("how", ["one by one", "many together", "by a stamp", "with the root"])
def test_what_a_worker_has_claimed_ahead_is_revoked_before_it_begins(fleet_with_results: Fleet, how: str) -> None:
    """Short tasks make a worker look ahead: what waits in its pool is behind a task that goes on for longer."""
    fleet = fleet_with_results
    fleet.worker(slots=1).start()
    for number in range(100):
        fleet.send("note", f"short {number}")
    fleet.wait_done(100)
    gate = fleet.app.signature(f"{APPLICATION}.gate", args=("g", str(fleet.directory)))
    notes = [fleet.app.signature(f"{APPLICATION}.note", args=("never",), root_id="r") for _ in range(3)]
    for note in notes:
        note.stamp(batch="b1")
    results = atomic_celery.publish_many([gate, *notes], app=fleet.app)[1:]
    fleet.begun("g")

    if how == "one by one":
        for result in results:
            result.revoke()
    elif how == "many together":
        fleet.app.control.revoke([*(result.id for result in results), *(f"unknown-{number}" for number in range(200))])
    elif how == "by a stamp":
        fleet.app.control.revoke_by_stamped_headers({"batch": ["b1", "b2"]})
    else:
        assert atomic_celery.Root("r", app=fleet.app).cancel(grace_s=60)
        fleet.wait_until(lambda: len(fleet.running()) == 1, what="nothing but the gate is held")
    assert fleet.app.control.broadcast("ping", reply=True, timeout=60, limit=1) == [{"w@test": {"ok": "pong"}}]
    fleet.open_gate("g")

    fleet.wait_until(lambda: not fleet.unfinished(), what="all is settled")
    assert {result.state for result in results} == {"REVOKED"}
    assert fleet.ledger.rows()[100:] == ["g"]


def test_what_waits_for_its_time_is_revoked_whatever_it_waits_for(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    fleet.worker(slots=2).start().wait_line("ready")
    soon = datetime.now(timezone.utc) + timedelta(seconds=DELAY_S)
    revoked = {
        "eta": fleet.send("note", "never", eta=soon),
        "countdown": fleet.send("note", "never", countdown=DELAY_S),
        "countdown and a later end": fleet.send("note", "never", countdown=DELAY_S, expires=60),
        "countdown and an end before": fleet.send("note", "never", countdown=DELAY_S, expires=1),
        "retry": fleet.send("retry", 1, float(DELAY_S)),
        "running": fleet.send("gate", "g", str(fleet.directory)),
    }
    fleet.gate("g")
    fleet.wait_until(lambda: revoked["retry"].state == "RETRY", what="it waits for its retry")
    for result in revoked.values():
        fleet.app.control.revoke(result.id, terminate=True, signal="SIGKILL")
    kept = fleet.send("note", "kept", eta=soon, expires=60)
    assert kept.get(timeout=60) is None
    fleet.wait_until(lambda: not fleet.unfinished(), what="all is settled")
    assert {why: result.state for why, result in revoked.items()} == dict.fromkeys(revoked, "REVOKED")
    assert sorted(fleet.ledger.rows()) == ["kept", "retry 0"]


def test_an_expired_task_is_revoked_and_never_runs(fleet_with_results: Fleet) -> None:
    fleet = fleet_with_results
    result = fleet.send("note", "never", expires=0.001)
    fleet.wait_until(lambda: fleet.store.now_ms() > fleet.store.reads.messages()[0].expires_ms, what="it has expired")
    fleet.worker().start()
    fleet.wait_until(lambda: result.state == "REVOKED", what="the result says so")
    fleet.wait_until(lambda: not fleet.unfinished(), what="it is settled")
    assert fleet.ledger.rows() == []


def test_a_rate_limited_task_is_held_and_runs_in_time(fleet: Fleet) -> None:
    worker = fleet.worker().start()
    worker.wait_line("ready")
    reply = fleet.app.control.rate_limit("tests.support.application.note", "4/s", reply=True, timeout=60, limit=1)
    assert reply
    for number in range(6):
        fleet.send("note", f"n{number}")
    assert sorted(fleet.wait_done(6)) == [f"n{number}" for number in range(6)]
    fleet.wait_until(lambda: not fleet.unfinished(), what="all is settled")


def test_each_of_many_questions_is_answered(fleet: Fleet) -> None:
    """Each asks under the name of a reply queue that was deleted with the answer before."""
    fleet.worker().start().wait_line("ready")
    for _ in range(30):
        assert fleet.app.control.broadcast("ping", reply=True, timeout=60, limit=1) == [{"w@test": {"ok": "pong"}}]


UNUSABLE = [
    {"queue": "a\0b"},
    {"queue": "x" * 600},
    {"queue": {"a": "mapping"}},
    {"queue": "headed", "exchange_type": "headers"},
]


def test_commands_that_make_no_sense_end_no_worker(fleet: Fleet) -> None:
    worker = fleet.worker().start()
    worker.wait_line("ready")
    for arguments in UNUSABLE:
        assert fleet.app.control.broadcast("add_consumer", arguments=arguments, reply=True, timeout=60, limit=1)
    assert fleet.app.control.broadcast("cancel_consumer", arguments=UNUSABLE[2], reply=True, timeout=60, limit=1)
    fleet.wait_until(lambda: worker.log.count("cannot be done") == len(UNUSABLE) + 1)
    for n in (-1, 0, "many", 1.5):
        for command in ("pool_grow", "pool_shrink"):
            [reply] = fleet.app.control.broadcast(command, arguments={"n": n}, reply=True, timeout=60, limit=1)
            assert "a whole number of processes, at least 1" in reply["w@test"]["error"]
    for limits in ({"soft": "x"}, {"hard": [1]}):
        limited = {"task_name": "tests.support.application.note", **limits}
        [reply] = fleet.app.control.broadcast("time_limit", arguments=limited, reply=True, timeout=60, limit=1)
        assert "time limit is a number of seconds" in reply["w@test"]["error"]
    fleet.send("note", "after")
    assert fleet.wait_done(1) == ["after"]
    fleet.wait_until(
        lambda: [list(host.queues) for host in fleet.store.hosts.list()] == [["celery"]],
        what="the list of hosts says what is consumed",
    )
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_consumers_are_added_and_cancelled_and_the_pool_grows(fleet: Fleet) -> None:
    worker = fleet.worker().start()
    worker.wait_line("ready")
    control = fleet.app.control
    assert control.add_consumer("extra", reply=True, timeout=60, limit=1)
    assert control.pool_grow(2, reply=True, timeout=60, limit=1)
    fleet.send("note", "by-extra", queue="extra")
    assert fleet.wait_done(1) == ["by-extra"]
    fleet.wait_until(
        lambda: [(set(host.queues), host.slots) for host in fleet.store.hosts.list()] == [({"celery", "extra"}, 3)],
        what="the list of hosts says so",
    )
    assert control.cancel_consumer("extra", reply=True, timeout=60, limit=1)
    fleet.wait_until(lambda: list(fleet.store.hosts.list()[0].queues) == ["celery"], what="the list says so")
