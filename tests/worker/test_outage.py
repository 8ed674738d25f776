"""The database is away for a while: the worker goes on, within what its leases allow."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest

from atomic_celery import status
from tests.support.postgres import Postgres, PostgresServer
from tests.support.proxy import Proxy
from tests.support.workers import HASTY, QUICK, Fleet
from tests.worker.test_losing import gone


@pytest.fixture
def proxied(postgres_url: str, proxy: Proxy, tmp_path: Path) -> Iterator[tuple[Fleet, Proxy]]:
    """A fleet whose workers reach the database through a network that can be broken."""
    with closing(Fleet(postgres_url, tmp_path, broker=proxy.url(postgres_url), settings=HASTY)) as fleet:
        yield fleet, proxy


def test_an_outage_is_said_with_doubling_waits_and_its_end_too(proxied: tuple[Fleet, Proxy]) -> None:
    fleet, proxy = proxied
    worker = fleet.worker().start()
    worker.wait_line("ready")
    proxy.drop()
    for failures, retry_in_ms in ((1, 1000), (2, 2000), (3, 4000)):
        worker.wait_line("degraded", failures=failures, retry_in_ms=retry_in_ms)
    proxy.restore()
    worker.wait_line("recovered")
    fleet.send("note", "after")
    assert fleet.wait_done(1) == ["after"]
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_host_whose_polls_fail_while_it_reports_is_shown_as_degraded_with_the_reason(
    postgres_url: str, tmp_path: Path
) -> None:
    """What it claims from is locked; the list of hosts is not."""
    with closing(Fleet(postgres_url, tmp_path, settings=HASTY)) as fleet:
        worker = fleet.worker().start()
        worker.wait_line("ready")
        with closing(psycopg2.connect(postgres_url)) as session, session.cursor() as cursor:
            cursor.execute("LOCK TABLE atomic_ready IN ACCESS EXCLUSIVE MODE")
            worker.wait_line("degraded")
            # A report that is late for a moment makes it stale instead.
            fleet.wait_until(
                lambda: (host := shown(fleet)).state == "degraded" and host.poll_failures and host.last_error,
                what="its reports say so",
            )
        worker.wait_line("recovered")
        fleet.wait_until(lambda: shown(fleet).state == "idle", what="its reports say that it is well")


def shown(fleet: Fleet) -> status.HostStatus:
    """Return the one host as `status` shows it."""
    store = fleet.store
    seen = status.compose(store.now_ms(), store.hosts.list(), [], [], store=store, version=None)
    return seen.hosts[0]


@pytest.mark.parametrize("how", ["drop", "blackhole"])
def test_an_outage_shorter_than_the_lease_costs_no_task(proxied: tuple[Fleet, Proxy], how: str) -> None:
    fleet, proxy = proxied
    worker = fleet.worker(env={"ATOMIC_LEASE": "60"}).start()
    result = fleet.send("gate", "g", str(fleet.directory))
    fleet.gate("g")
    getattr(proxy, how)()
    worker.wait_line("degraded")
    fleet.open_gate("g")
    assert fleet.wait_done(1) == ["g"]
    proxy.restore()
    worker.wait_line("released", child=result.id, outcome="succeeded")
    fleet.wait_until(lambda: not fleet.unfinished(), what="it is settled")
    assert not worker.events("lost")
    assert fleet.ledger.rows() == ["g"]


def test_a_lease_that_cannot_be_confirmed_ends_its_child_and_the_worker_lives_on(
    proxied: tuple[Fleet, Proxy],
) -> None:
    fleet, proxy = proxied
    cut_off = fleet.worker("cut-off").start()
    fleet.send("gate", "g", str(fleet.directory))
    child = fleet.gate("g")
    proxy.blackhole()
    fleet.wait_until(lambda: gone(child), what="the child ends at its own fence")
    cut_off.wait_line("lost", reason="expired")
    assert not list(fleet.directory.glob("g.begun.2")), "nobody has it before the fence of the first was over"
    other = Fleet.worker(fleet, "other", env={**QUICK, "TEST_BROKER": fleet.url}).start()
    other.wait_line("claimed", fence=2)
    proxy.restore()
    cut_off.wait_line("recovered")
    fleet.open_gate("g")
    assert fleet.wait_done(1) == ["g"]
    cut_off.signal(signal.SIGTERM)
    assert cut_off.wait() == 0


def test_a_restarted_database_ends_no_worker_and_loses_no_task(own_postgres: PostgresServer, tmp_path: Path) -> None:
    with closing(Fleet(own_postgres.create_database(), tmp_path, settings=HASTY)) as fleet:
        worker = fleet.worker(slots=2, env={"ATOMIC_LEASE": "30", "ATOMIC_RENEW_EVERY": "5"}).start()
        for name in ("a", "b"):
            fleet.send("gate", name, str(fleet.directory))
        for name in ("a", "b"):
            fleet.begun(name)
        own_postgres.restart()
        for name in ("a", "b"):
            fleet.open_gate(name)
        fleet.send("note", "c")
        assert sorted(fleet.wait_done(3)) == ["a", "b", "c"]
        fleet.wait_until(lambda: not fleet.unfinished(), what="all is settled")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert sorted(fleet.ledger.rows()) == ["a", "b", "c"]


def test_a_worker_whose_tables_are_dropped_says_how_to_make_them_and_goes_on_in_new_ones(
    postgres: Postgres, postgres_url: str, tmp_path: Path
) -> None:
    with closing(Fleet(postgres_url, tmp_path, settings=HASTY)) as fleet:
        worker = fleet.worker().start()
        worker.wait_line("ready")
        database = urlsplit(postgres_url).path[1:]
        names = postgres.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'atomic\\_%'", database=database)
        # Of two that wait for each other's tables, the worker is to give up.
        drop = f"SET deadlock_timeout = '1min'; DROP TABLE {', '.join(name for (name,) in names)}"
        postgres.execute(drop, database=database)
        worker.wait_degraded("run: celery -A <your project> atomic migrate")
        fleet.store.schema.migrate()
        worker.wait_line("recovered")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


def test_a_worker_that_finds_no_room_on_the_disk_goes_on_when_there_is_some(tmp_path: Path) -> None:
    with closing(Fleet(f"sqlite:///{tmp_path}/fleet.db", tmp_path, settings=HASTY)) as fleet:
        worker = fleet.worker().start()
        worker.wait_line("ready")
        unlimited = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (4096, unlimited[1]))
        fleet.send("note", "a")
        worker.wait_line("degraded", count=2)
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, unlimited)
        worker.wait_line("recovered")
        fleet.wait_until(lambda: not fleet.unfinished(), what="it is settled")
        assert set(fleet.ledger.rows()) == {"a"}
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


def test_the_second_signal_ends_a_worker_whose_database_is_away(proxied: tuple[Fleet, Proxy]) -> None:
    fleet, proxy = proxied
    worker = fleet.worker(env={"ATOMIC_LEASE": "30", "ATOMIC_RENEW_EVERY": "10"}).start()
    fleet.send("gate", "g", str(fleet.directory))
    child = fleet.gate("g")
    proxy.blackhole()
    worker.signal(signal.SIGTERM)
    worker.wait_line("draining")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 2
    fleet.wait_until(lambda: gone(child), what="the child is dead")
