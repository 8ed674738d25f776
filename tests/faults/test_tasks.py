"""What may befall the host of a task: rows of the table of faults that a plain task must survive, on real workers.

Every scenario ends with `Scene.ends_well`: each task completed once, under the last of fences that grew one by one, by
an attempt that ran, with that attempt's result; nothing granted after the end; no process left behind.
"""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

import pytest

from tests.faults.scene import LEASE_S, LONG, Scene
from tests.support.freezing import freeze
from tests.support.postgres import Postgres, PostgresServer
from tests.support.proxy import Proxy
from tests.support.waiting import DeadlinePassed
from tests.support.workers import WorkerProcess
from tests.worker.test_losing import gone

RECOVERY_MS = 5_000
"""What recovery may take beyond the lease."""

AS_IN_LIFE = {"ATOMIC_RECOVER_EVERY": "2"}
"""How often hosts look for leases that ran out, when nobody sets it."""


def freeze_host(scene: Scene, worker: WorkerProcess, name: str) -> None:
    """Stop a host, but not the child that runs *name*, which says that it is done before its lease is over."""
    worker.freeze()
    scene.open(name, fence=1)
    scene.wait_until(lambda: f"{name} 1" in scene.fleet.ledger.rows(), "the body of the first attempt has run")


def test_a_killed_host_s_task_runs_elsewhere_after_its_lease_and_within_5_s(scene: Scene) -> None:
    """Row 2, and row 2 of the hosts: killed in the body."""
    victim = scene.worker("victim")
    task_id = scene.send("g")
    scene.begun("g")
    scene.successor(**AS_IN_LIFE)
    killed_ms = scene.kill(victim)
    scene.begun("g", fence=2)
    [view] = scene.store.reads.messages()
    assert [crash.fence for crash in scene.store.reads.crashes(view.id)] == [1]
    scene.open("g")
    scene.ends_well()
    [ended, _] = scene.witness.of(task_id, "let go")
    _, second = scene.witness.of(task_id, "granted")
    assert ended.lease_until_ms <= ended.at_ms <= second.at_ms
    assert second.at_ms - killed_ms <= LEASE_S * 1000 + RECOVERY_MS
    assert scene.fleet.ledger.rows() == ["g 2"]


def test_a_host_whose_renewals_are_stalled_stops_its_task_before_the_lease_is_over(
    distant_scene: Scene, proxy: Proxy
) -> None:
    """Row 4: only the renewals are held up; all else that the host says gets through."""
    scene = distant_scene
    victim = scene.worker("victim")
    task_id = scene.send("g")
    child = scene.begun("g")
    scene.successor()
    proxy.hold(b"atomic_messages_renew")
    scene.wait_until(lambda: gone(child), "the child ends at its fence")
    died_ms = scene.store.now_ms()
    victim.wait_line("lost", child=task_id, fence=1, reason="expired")
    scene.begun("g", fence=2)
    proxy.restore()
    scene.open("g")
    scene.ends_well()
    [ended, _] = scene.witness.of(task_id, "let go")
    assert died_ms <= ended.lease_until_ms, "dead before anybody else may have it"
    assert "task_failure" not in victim.log
    assert scene.fleet.ledger.rows() == ["g 2"]


def test_a_host_frozen_before_its_write_is_refused_when_another_one_has_the_task(scene: Scene) -> None:
    """Row 5, and row 3 of the hosts: the successor is not done yet when the frozen host goes on."""
    victim = scene.worker("victim")
    scene.send("g")
    scene.begun("g")
    freeze_host(scene, victim, "g")
    scene.successor()
    scene.begun("g", fence=2)
    victim.signal(signal.SIGCONT)
    victim.wait_line("lost", fence=1)
    assert scene.sent["g"].state == "PENDING"
    assert [view.fence for view in scene.fleet.running()] == [2]
    scene.open("g")
    scene.ends_well()
    assert scene.fleet.ledger.rows() == ["g 1", "g 2"], "the first body ran to its end; only its completion is refused"


def test_a_completion_that_arrives_after_the_takeover_is_refused_by_the_database(
    distant_scene: Scene, proxy: Proxy, postgres: Postgres
) -> None:
    """Row 5: past every check of its sender's, the statement is under way when the host freezes."""
    scene = distant_scene
    victim = scene.worker("victim")
    task_id = scene.send("g")
    scene.begun("g")
    [message] = scene.store.reads.messages()
    completion = f"EXECUTE atomic_messages_turn ('[[{message.id}, 1]]'"
    proxy.hold(completion.encode())
    scene.open("g", fence=1)
    scene.wait_until(lambda: any(link.held for link in proxy.links()), "the completion is under way")
    freeze(victim.pid)
    scene.successor()
    scene.begun("g", fence=2)
    proxy.restore()
    scene.wait_until(lambda: has_run(postgres, completion), "the completion has arrived")
    assert scene.witness.of(task_id, "ended") == []
    victim.signal(signal.SIGCONT)
    scene.open("g")
    scene.ends_well()
    assert scene.fleet.ledger.rows() == ["g 1", "g 2"]


def has_run(postgres: Postgres, statement: str) -> bool:
    """Whether a session of the server has executed what contains *statement*, and nothing after it."""
    quoted = statement.replace("'", "''").replace("_", r"\_")
    found = postgres.execute(
        "SELECT pid FROM pg_stat_activity "
        f"WHERE query LIKE '%{quoted}%' AND state <> 'active' AND pid <> pg_backend_pid()"
    )
    return bool(found)


def test_a_host_frozen_before_its_write_is_refused_when_another_one_has_finished_the_task(scene: Scene) -> None:
    """Row 5c: nothing that was finished changes any more."""
    victim = scene.worker("victim")
    task_id = scene.send("g")
    scene.begun("g")
    freeze_host(scene, victim, "g")
    scene.successor()
    scene.begun("g", fence=2)
    scene.open("g")
    scene.wait_ended("g")
    finished = scene.witness.history(task_id)
    victim.signal(signal.SIGCONT)
    victim.wait_line("lost", fence=1)
    scene.send("h")
    scene.open("h")
    scene.wait_ended("h")
    scene.ends_well()
    assert scene.witness.history(task_id) == finished
    assert scene.sent["g"].result == 2


def test_a_claim_that_arrives_late_is_not_granted_what_was_finished_meanwhile(
    distant_scene: Scene, proxy: Proxy
) -> None:
    """Row 6b: a host froze right after it had asked for work."""
    scene = distant_scene
    frozen = scene.worker("frozen", env=LONG)
    proxy.hold(b"EXECUTE atomic_messages_turn")
    task_id = scene.send("g")
    scene.wait_until(lambda: any(link.held for link in proxy.links()), "it asks")
    freeze(frozen.pid)
    scene.successor()
    scene.open("g")
    scene.wait_ended("g")
    [granted] = scene.witness.of(task_id, "granted")
    proxy.restore()
    frozen.signal(signal.SIGCONT)
    for name in ("h", "i"):
        scene.send(name)
    scene.fleet.begun("h")
    scene.fleet.begun("i")
    frozen.wait_line("claimed")  # two tasks run at once on one slot each: it is well again
    for name in ("h", "i"):
        scene.open(name)
    scene.ends_well()
    assert scene.witness.of(task_id, "granted") == [granted]
    assert not frozen.events("claimed", child=task_id)


def test_a_host_that_joins_takes_what_a_full_one_cannot_run(scene: Scene) -> None:
    """Row 7: no configuration needed."""
    full = scene.worker("full", env=LONG)
    running, waiting = scene.send("g"), scene.send("h")
    scene.begun("g")
    joined = scene.successor("joined")
    scene.fleet.begun("h")
    assert (full.wait_line("claimed")["child"], joined.wait_line("claimed")["child"]) == (running, waiting)
    for name in ("g", "h"):
        scene.open(name)
    scene.ends_well()
    assert sorted(row.split()[0] for row in scene.fleet.ledger.rows()) == ["g", "h"]


@pytest.mark.parametrize("how", ["drop", "pause"])
def test_a_host_that_alone_lost_its_database_stops_its_task_and_lives_on(
    distant_scene: Scene, proxy: Proxy, how: str
) -> None:
    """Row 8, cut and held up; swallowed is in tests/worker/test_outage.py."""
    scene = distant_scene
    victim = scene.worker("victim")
    task_id = scene.send("g")
    child = scene.begun("g")
    scene.successor()
    getattr(proxy, how)()
    scene.begun("g", fence=2)
    assert gone(child), "no two attempts run at a time: the first ends a margin before its lease"
    victim.wait_line("degraded")
    victim.wait_line("lost", child=task_id, reason="expired")
    proxy.restore()
    victim.wait_line("recovered")
    scene.send("h")
    scene.fleet.begun("h")
    victim.wait_line("claimed", child=scene.sent["h"].id)
    scene.open("g")
    scene.open("h")
    scene.ends_well()
    rows = scene.fleet.ledger.rows()
    assert "g 2" in rows
    assert sorted(row.split()[0] for row in rows) == ["g", "h"]


def test_when_all_lost_the_database_for_longer_than_a_lease_the_old_attempt_does_not_go_on(
    fragile_scene: Scene, own_postgres: PostgresServer
) -> None:
    """Row 8b: the same host gets the task again, under a new fence."""
    scene = fragile_scene
    worker = scene.worker("w")
    task_id = scene.send("g")
    child = scene.begun("g")
    own_postgres.stop()
    scene.wait_until(lambda: gone(child), "the child ends at its fence")
    own_postgres.start()
    assert scene.begun("g", fence=2) != child
    worker.wait_line("recovered")
    scene.open("g")
    scene.ends_well()
    assert [line["fence"] for line in worker.events("claimed", child=task_id)] == ["1", "2"]
    assert scene.fleet.ledger.rows() == ["g 2"]


def test_when_nobody_can_write_for_longer_than_a_lease_the_old_attempt_does_not_go_on(
    sqlite_scene: Scene, sqlite_url: str
) -> None:
    """Row 8b, on SQLite: another program keeps the write lock."""
    scene = sqlite_scene
    worker = scene.worker("w")
    task_id = scene.send("g")
    child = scene.begun("g")
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        scene.wait_until(lambda: gone(child), "the child ends at its fence")
        other.execute("ROLLBACK")
    assert scene.begun("g", fence=2) != child
    scene.open("g")
    scene.ends_well()
    assert [line["fence"] for line in worker.events("claimed", child=task_id)] == ["1", "2"]
    assert scene.fleet.ledger.rows() == ["g 2"]


def ends_in_time(worker: WorkerProcess, grace_s: float) -> int:
    """End a worker as a platform does: SIGTERM, and SIGKILL after its grace; return the exit code."""
    worker.signal(signal.SIGTERM)
    try:
        return worker.wait(grace_s)
    except DeadlinePassed:
        worker.signal(signal.SIGKILL)
        return worker.wait()


def test_a_shutdown_timeout_below_the_platform_s_grace_hands_over_without_waiting_for_a_lease(scene: Scene) -> None:
    """Row 11: the task takes longer than both."""
    leaving = scene.worker("leaving", env={**LONG, "ATOMIC_SHUTDOWN_TIMEOUT": "2"})
    task_id = scene.send("g")
    child = scene.begun("g")
    scene.successor()
    assert ends_in_time(leaving, grace_s=20) == 0
    assert gone(child)
    leaving.wait_line("released", child=task_id, outcome="released")
    scene.begun("g", fence=2)
    [view] = scene.store.reads.messages()
    assert (view.fence, view.crashes) == (2, 0)
    scene.open("g")
    scene.ends_well()
    [first, _] = scene.witness.of(task_id, "let go")
    assert first.at_ms < first.lease_until_ms
    assert scene.fleet.ledger.rows() == ["g 2"]


def test_a_worker_killed_in_the_middle_of_its_drain_is_a_crashed_one(scene: Scene) -> None:
    """Row 11b: the platform's grace is over before the shutdown timeout."""
    leaving = scene.worker("leaving", env={"ATOMIC_SHUTDOWN_TIMEOUT": "300"})
    task_id = scene.send("g")
    child = scene.begun("g")
    scene.successor(**AS_IN_LIFE)
    leaving.signal(signal.SIGTERM)
    leaving.wait_line("draining")
    killed_ms = scene.kill(leaving)
    scene.begun("g", fence=2)
    assert gone(child)
    [view] = scene.store.reads.messages()
    assert (view.fence, view.crashes) == (2, 1)
    assert not leaving.events("released")
    scene.open("g")
    scene.ends_well()
    [first, _] = scene.witness.of(task_id, "let go")
    _, second = scene.witness.of(task_id, "granted")
    assert first.lease_until_ms <= first.at_ms
    assert second.at_ms - killed_ms <= LEASE_S * 1000 + RECOVERY_MS
    assert scene.fleet.ledger.rows() == ["g 2"]
