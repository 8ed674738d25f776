"""What may befall a host and its database: rows of the table of faults of hosts, on real workers."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from atomic_celery import status, trouble
from atomic_celery.config import Settings
from atomic_celery.store.store import open_store
from tests.faults.scene import LONG, Scene
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tests.support.workers import WorkerProcess
from tests.worker.test_losing import gone

CONNECTIONS = 5
"""Fewer than three hosts need."""


def test_a_second_signal_makes_the_task_ready_at_once_and_another_host_runs_it(scene: Scene) -> None:
    """Row 1: exit 2; no lease is waited for."""
    leaving = scene.worker("leaving", env=LONG)
    task_id = scene.send("g")
    child = scene.begun("g")
    scene.successor()
    leaving.signal(signal.SIGTERM)
    leaving.wait_line("draining")
    leaving.signal(signal.SIGTERM)
    assert leaving.wait() == 2
    scene.begun("g", fence=2)
    assert gone(child)
    [view] = scene.store.reads.messages()
    assert (view.fence, view.crashes) == (2, 0)
    scene.open("g")
    scene.ends_well()
    [first, _] = scene.witness.of(task_id, "let go")
    assert first.at_ms < first.lease_until_ms
    assert scene.fleet.ledger.rows() == ["g 2"]


def test_a_database_away_for_less_than_a_lease_costs_no_task_and_for_more_has_it_run_again(
    fragile_scene: Scene, own_postgres: PostgresServer
) -> None:
    """Row 4: two hosts whose leases differ, and one outage."""
    scene = fragile_scene
    impatient = scene.worker("impatient")
    scene.send("short")
    lost = scene.begun("short")
    patient = scene.worker("patient", env=LONG)
    scene.send("long")
    spared = scene.begun("long")
    own_postgres.kill()
    scene.wait_until(lambda: gone(lost), "the child with the short lease ends")
    own_postgres.start()
    for worker in (impatient, patient):
        worker.wait_line("degraded", failures=1, retry_in_ms=1000)
        worker.wait_line("recovered")
    scene.begun("short", fence=2)
    assert not gone(spared)
    for name in ("short", "long"):
        scene.open(name)
    scene.ends_well()
    assert sorted(scene.fleet.ledger.rows()) == ["long 1", "short 2"]


@contextmanager
def no_commit(server: PostgresServer) -> Iterator[None]:
    """Let every commit of *server* wait for a standby that does not exist; reads go on."""
    with ThreadPoolExecutor(1) as committer:
        server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        server.execute("SELECT pg_reload_conf()")
        try:
            emit = "SELECT pg_logical_emit_message(true, 'test', '')"
            wait_until(lambda: _hangs(server, committer.submit(server.execute, emit)))
            yield
        finally:
            server.execute("ALTER SYSTEM RESET synchronous_standby_names")
            server.execute("SELECT pg_reload_conf()")


def _hangs(server: PostgresServer, commit: Future[Any]) -> bool:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%emit_message%'"
    wait_until(lambda: commit.done() or server.execute(waiting))
    return not commit.done()


def test_a_database_whose_commits_hang_costs_no_task(fragile_scene: Scene, own_postgres: PostgresServer) -> None:
    """Row 5: what a host committed without hearing of it is neither lost nor done twice."""
    scene = fragile_scene
    worker = scene.worker("w", slots=2)
    scene.send("g")
    child = scene.begun("g")
    with no_commit(own_postgres):
        scene.wait_until(lambda: gone(child), "the child ends at its fence")
        worker.wait_line("degraded")
    worker.wait_line("recovered")
    scene.begun("g", fence=2)
    scene.send("h")
    for name in ("g", "h"):
        scene.open(name)
    scene.ends_well()


@pytest.mark.parametrize(
    ("hurt", "limit_s"), [("hangs", trouble.READ_LIMIT_S), ("does not commit", trouble.WRITE_LIMIT_S)]
)
def test_status_never_waits_longer_than_it_says(own_postgres: PostgresServer, hurt: str, limit_s: float) -> None:
    """Row 5: 5 s for a database that accepts and does not answer, 2 s for one that reads and does not commit."""
    store = open_store(f"atomic+{own_postgres.create_database()}", Settings())
    store.schema.migrate()
    if hurt == "hangs":
        own_postgres.kill(signal.SIGSTOP)
        try:
            took_s = _seconds_until_trouble("shared store degraded", lambda: status.read(store))
        finally:
            own_postgres.kill(signal.SIGCONT)
    else:
        with no_commit(own_postgres):
            took_s = _seconds_until_trouble("did not commit", lambda: trouble.probe_write(store))
    assert limit_s <= took_s <= limit_s + 5
    store.close()


def _seconds_until_trouble(says: str, ask: Callable[[], object]) -> float:
    began_s = time.monotonic()
    with pytest.raises(trouble.StoreTrouble, match=says):
        ask()
    return time.monotonic() - began_s


def test_hosts_that_find_no_connection_free_are_degraded_and_do_not_crash(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    """Row 16: the server says 53300, too many connections, to an ordinary user as it would to all."""
    url, names = own_postgres.create_database(), ("g", "h", "i")
    own_postgres.execute("CREATE ROLE guest LOGIN PASSWORD 'guest' IN ROLE postgres")
    guests_url = urlsplit(url)._replace(netloc=f"guest:guest@127.0.0.1:{own_postgres.port}").geturl()
    with closing(Scene(url, tmp_path, broker=guests_url)) as scene:
        hosts = [scene.worker(name) for name in ("a", "b", "c")]
        for name in names:
            scene.send(name)
        for name in names:
            scene.fleet.begun(name)
        own_postgres.execute(f"ALTER ROLE guest CONNECTION LIMIT {CONNECTIONS}")
        own_postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guest'")
        scene.wait_until(lambda: refused(hosts), "a host finds no connection free")
        own_postgres.execute("ALTER ROLE guest CONNECTION LIMIT -1")
        for host in hosts:
            if host.events("degraded"):
                host.wait_line("recovered")
        for name in names:
            scene.open(name)
        scene.ends_well()


def refused(hosts: list[WorkerProcess]) -> bool:
    """Whether a host has said that it found no connection free."""
    return any("too many connections" in line["error"] for host in hosts for line in host.events("degraded"))


def test_a_host_whose_first_connection_is_lost_at_once_says_that_it_is_ready_when_it_is(
    distant_scene: Scene, proxy: Proxy
) -> None:
    """Row 4: the database goes away while a host starts."""
    scene = distant_scene
    host = scene.fleet.worker("w")
    lost = proxy.drop_next_response(b"INSERT INTO atomic_binding")
    host.start()
    scene.wait_until(lost.is_set, "it has lost its connection")
    host.wait_line("ready")
    assert "was lost and is made again" in host.log
    scene.send("g")
    scene.open("g")
    scene.ends_well()
