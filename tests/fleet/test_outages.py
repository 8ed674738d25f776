"""Controllers whose database hangs, restarts, is full or gone; and one that is killed in the middle of a call."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from atomic_celery.config import Settings
from atomic_celery.fleet.controller import TERM
from atomic_celery.store.store import open_store
from tests.cli.conftest import World, project
from tests.fleet.controllers import Controllers
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy
from tests.support.workers import LONG_TERM


@contextmanager
def site(url: str, directory: Path) -> Iterator[Controllers]:
    """Let controllers run on a database, with one message that waits there."""
    store = open_store(f"atomic+{url}", Settings())
    store.schema.migrate()
    world = World(store)
    world.publish("t1")
    folder = directory / "cloud"
    folder.mkdir()
    made = Controllers(project(directory, f"atomic+{url}"), world, folder)
    try:
        yield made
    finally:
        made.close()
        store.close()


@pytest.fixture
def controllers(postgres_url: str, tmp_path: Path) -> Iterator[Controllers]:
    with site(postgres_url, tmp_path) as made:
        yield made


@pytest.fixture
def fragile(own_postgres: PostgresServer, tmp_path: Path) -> Iterator[Controllers]:
    """Controllers on a server that may be hurt."""
    with site(own_postgres.create_database(), tmp_path) as made:
        yield made


@pytest.mark.parametrize("where", ["list", "scale_to"])
def test_a_controller_whose_database_hangs_in_the_middle_of_a_call_gives_it_up_and_another_leads(
    controllers: Controllers, proxy: Proxy, postgres_url: str, where: str
) -> None:
    hold = controllers.folder / f"hold.{where}"
    hold.touch()
    first = controllers.start("--workers-per-host", "1", broker=f"atomic+{proxy.url(postgres_url)}")
    controllers.wait_until(lambda: (controllers.folder / f"came.{where}.{first.pid}").exists(), f"{where} has begun")
    before = [call for call in controllers.calls() if call[0] == first.pid]
    proxy.pause()
    heard = len(controllers.said(first))
    controllers.wait_until(
        lambda: {"given-up", "lost"} & set(controllers.said(first)[heard:]), "it does not trust its term"
    )
    hold.unlink()
    second = controllers.start("--workers-per-host", "1", **LONG_TERM)
    controllers.wait_until(lambda: (second.pid, "list") in controllers.calls(), "the other one leads")
    proxy.restore()
    controllers.wait_until(lambda: "controller-standby" in controllers.said(first), "the first stands by")
    assert [call for call in controllers.calls() if call[0] == first.pid] == before
    assert controllers.leads(second)


def test_a_controller_goes_on_after_a_restart_of_the_database_in_the_middle_of_a_tick(
    fragile: Controllers, own_postgres: PostgresServer
) -> None:
    hold = fragile.folder / "hold.scale_to"
    hold.touch()
    process = fragile.start("--workers-per-host", "1")
    fragile.wait_until(lambda: (fragile.folder / f"came.scale_to.{process.pid}").exists(), "a call has begun")
    own_postgres.kill()
    own_postgres.start()
    hold.unlink()
    listed = fragile.calls().count((process.pid, "list"))
    fragile.wait_until(lambda: fragile.calls().count((process.pid, "list")) >= listed + 2, "it ticks again, twice")
    assert len(list(fragile.folder.glob("vm-*.json"))) == fragile.calls().count((process.pid, "scale_to")) <= 1
    assert process.poll() is None


def test_a_controller_that_finds_no_connection_free_is_degraded_and_goes_on_when_there_is_one(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    url = own_postgres.create_database()
    own_postgres.execute("CREATE ROLE guest LOGIN PASSWORD 'guest' IN ROLE postgres")
    guests_url = urlsplit(url)._replace(netloc=f"guest:guest@127.0.0.1:{own_postgres.port}").geturl()
    with site(url, tmp_path) as controllers:
        process = controllers.start(broker=f"atomic+{guests_url}")
        controllers.wait_until(lambda: controllers.leads(process), "it leads")
        own_postgres.execute("ALTER ROLE guest CONNECTION LIMIT 0")
        own_postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guest'")

        def degraded() -> list[int]:
            lines = controllers.lines(process)
            return [line["retry_in_ms"] for line in lines if "too many connections" in line.get("error", "")]

        controllers.wait_until(lambda: len(degraded()) >= 3, "it says so, again and again")
        assert process.poll() is None
        own_postgres.execute("ALTER ROLE guest CONNECTION LIMIT -1")
        controllers.wait_until(lambda: "recovered" in controllers.said(process), "it is well again")
        listed = len(controllers.calls())
        controllers.wait_until(lambda: len(controllers.calls()) > listed, "it ticks")


def test_a_controller_that_is_told_to_end_while_the_database_is_away_ends_well(
    fragile: Controllers, own_postgres: PostgresServer
) -> None:
    process = fragile.start()
    fragile.wait_until(lambda: fragile.leads(process), "it leads")
    own_postgres.kill()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert fragile.said(process)[-1] == "stopped"


def test_nor_does_it_wait_for_one_that_hangs(controllers: Controllers, proxy: Proxy, postgres_url: str) -> None:
    process = controllers.start(broker=f"atomic+{proxy.url(postgres_url)}")
    controllers.wait_until(lambda: controllers.leads(process), "it leads")
    proxy.pause()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert controllers.said(process)[-1] == "stopped"


def test_what_a_killed_controller_was_asking_for_is_not_asked_for_again(controllers: Controllers) -> None:
    """Nobody knows whether it got through: it counts as on its way."""
    (controllers.folder / "hold.scale_to").touch()
    killed = controllers.start("--workers-per-host", "1")
    controllers.wait_until(lambda: (controllers.folder / f"came.scale_to.{killed.pid}").exists(), "a call has begun")
    killed.kill()
    killed.wait(60)
    (controllers.folder / "hold.scale_to").unlink()
    successor = controllers.start("--workers-per-host", "1")
    controllers.wait_until(lambda: controllers.calls().count((successor.pid, "list")) >= 2, "two ticks of the next")
    assert "scale_to" not in {name for _, name in controllers.calls()}
    kept = controllers.world.store.controllers.load(TERM)
    assert kept is not None
    assert [count for _, count in kept.memory["asked"]] == [1]
