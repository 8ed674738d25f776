"""The signal over HTTP, from a real database to a real client."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from atomic_celery import errors
from atomic_celery.config import Settings
from atomic_celery.fleet import serving
from atomic_celery.fleet.policy import Policy
from atomic_celery.fleet.reading import Reader
from atomic_celery.fleet.serving import Server, SignalPages, address_of
from atomic_celery.store.store import Store, open_store
from tests.cli.conftest import project
from tests.store.desk import Desk
from tests.store.test_hosts import host
from tests.support.postgres import PostgresServer
from tests.support.promtool import promtool
from tests.support.waiting import wait_until

NAMES = {
    "atomic_fleet_desired_hosts",
    "atomic_fleet_desired_workers",
    "atomic_fleet_demand",
    "atomic_fleet_queue_depth",
    "atomic_fleet_running",
    "atomic_fleet_hosts",
    "atomic_fleet_slots",
    "atomic_fleet_min_hosts",
    "atomic_fleet_max_hosts",
    "atomic_fleet_workers_per_host",
    "atomic_fleet_store_up",
}


@contextmanager
def served(store: Store, policy: Policy | None = None, **options: Any) -> Iterator[Server]:
    reader = Reader(store, policy or Policy(), **options)
    server = Server("127.0.0.1:0", SignalPages(reader))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(60)
        server.server_close()


def get(address: str, path: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection(address, timeout=20)) as client:
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, answer.read().decode()


def metrics(address: str) -> dict[str, float]:
    status, text = get(address, "/metrics")
    assert status == 200
    return {
        sample.name + (f"/{sample.labels['state']}" if "state" in sample.labels else ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_signal_as_json(desk: Desk) -> None:
    for _ in range(5):
        desk.publish()
    desk.store.hosts.register(host("h1", provider_id="secret-vm"))
    with served(desk.store) as server:
        status, body = get(server.address, "/scaling")
    document = json.loads(body)
    assert status == 200
    assert (document["desiredHosts"], document["demand"], document["hosts"]) == (2, 5, 1)


def test_the_signal_for_prometheus(desk: Desk) -> None:
    desk.publish()
    desk.pass_ms(2500)
    desk.store.hosts.register(host("h1"))
    with served(desk.store) as server:
        seen = metrics(server.address)
    assert {name.partition("/")[0] for name in seen} >= NAMES
    assert (seen["atomic_fleet_store_up"], seen["atomic_fleet_desired_hosts"]) == (1, 1)
    assert (seen["atomic_fleet_slots/busy"], seen["atomic_fleet_slots/idle"]) == (1, 1)
    assert (seen["atomic_cluster_slot_demand"], seen["atomic_cluster_oldest_seconds"]) == (1, 2.5)
    assert seen["atomic_instance_reads_total"] == 1


def test_what_is_not_there_is_answered_with_what_is(desk: Desk) -> None:
    with served(desk.store) as server:
        status, said = get(server.address, "/nothing")

    assert (status, json.loads(said)) == (404, {"error": "there are /metrics, /scaling and /healthz"})


def test_nothing_but_counts_gets_out(desk: Desk) -> None:
    desk.publish(task_id="secret-task", root_id="secret-root")
    desk.store.hosts.register(host("secret-host", provider_id="secret-vm"))
    with served(desk.store) as server:
        said = [get(server.address, path)[1] for path in ("/scaling", "/metrics", "/healthz", "/nothing")]
    assert not re.search("secret|atomic\\.db|postgres|127", "".join(said))


def test_a_thousand_scrapes_are_one_read(desk: Desk) -> None:
    with served(desk.store, every_s=3600) as server:
        before = metrics(server.address)["atomic_instance_reads_total"]
        for _ in range(500):
            assert get(server.address, "/scaling")[0] == 200
            metrics(server.address)
        assert metrics(server.address)["atomic_instance_reads_total"] == before == 1


def test_the_next_read_is_five_seconds_later(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("atomic_celery.clock.monotonic_s", lambda: now_s[0])
    reader = Reader(desk.store, Policy())
    for at_s in (100.0, 104.9, 105.0, 109.9, 110.0):
        now_s[0] = at_s
        reader.read()
    assert reader.reads_count == 3


def test_a_database_that_cannot_be_read_is_503_and_no_zero(own_postgres: PostgresServer) -> None:
    """An autoscaler that took an outage for an empty queue would scale the fleet to nothing."""
    store = open_store(f"atomic+{own_postgres.create_database()}", Settings())
    store.schema.migrate()
    with closing(store), served(store, every_s=0.0) as server:
        assert get(server.address, "/scaling")[0] == 200
        own_postgres.kill()
        assert get(server.address, "/scaling") == (503, '{"error": "the database cannot be read"}\n')
        seen = metrics(server.address)
        assert seen["atomic_fleet_store_up"] == 0
        assert [name for name in seen if not name.startswith("atomic_instance")] == ["atomic_fleet_store_up"]
        assert get(server.address, "/healthz") == (200, "ok\n")
        own_postgres.start()
        wait_until(lambda: get(server.address, "/scaling")[0] == 200, 60)


def test_a_failed_read_is_remembered_as_long_as_one_that_worked(postgres_url: str) -> None:
    store = open_store(f"atomic+{postgres_url}", Settings())  # without tables
    with closing(store):
        reader = Reader(store, Policy(), every_s=3600)
        assert reader.read().scaling is None
        assert reader.read() is reader.read()
        assert (reader.reads_count, reader.failures_count) == (1, 1)


def test_tables_that_are_not_there_yet_are_waited_for(postgres_url: str) -> None:
    store = open_store(f"atomic+{postgres_url}", Settings())
    with closing(store), served(store, every_s=0.0) as server:
        assert get(server.address, "/scaling")[0] == 503
        store.schema.migrate()
        assert get(server.address, "/scaling")[0] == 200


@pytest.mark.parametrize("sends", [b"", b"GET /sca", None])
def test_a_slow_client_is_cut_off(desk: Desk, monkeypatch: pytest.MonkeyPatch, sends: bytes | None) -> None:
    """One that says nothing, one that stops in the middle, one that says a byte now and then."""
    monkeypatch.setattr(serving, "CLIENT_LIMIT_S", 1.0)
    with served(desk.store) as server:
        host_name, _, port = server.address.rpartition(":")
        began_s = time.monotonic()
        with closing(_connect(host_name, int(port))) as client:
            client.sendall(sends or b"")
            while not _is_cut_off(client, drip=sends is None):
                assert time.monotonic() - began_s < 30
            assert time.monotonic() - began_s >= 0.9
        monkeypatch.undo()
        assert get(server.address, "/healthz")[0] == 200


def _connect(host_name: str, port: int) -> socket.socket:
    """Connect, however long it takes, to read for a moment only."""
    client = socket.create_connection((host_name, port), timeout=30)
    client.settimeout(0.1)
    return client


def _is_cut_off(client: socket.socket, *, drip: bool) -> bool:
    try:
        if drip:
            client.sendall(b"x")
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_the_limit_is_ten_seconds() -> None:
    assert serving.CLIENT_LIMIT_S == 10


def test_who_asks_is_served_before_those_who_say_nothing(desk: Desk) -> None:
    """When there is no more room, who has been silent for longest makes it."""
    with served(desk.store) as server, ExitStack() as stack:
        host_name, _, port = server.address.rpartition(":")
        silent = [stack.enter_context(closing(_connect(host_name, int(port)))) for _ in range(serving.CLIENTS_AT_ONCE)]
        assert get(server.address, "/healthz")[0] == 200
        wait_until(lambda: _is_cut_off(silent[0], drip=False), 60)
        assert not _is_cut_off(silent[-1], drip=False)


def test_when_all_wait_for_an_answer_the_next_one_is_turned_away(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CLIENTS_AT_ONCE", 2)
    go_on = threading.Event()
    with served(desk.store) as server, ThreadPoolExecutor() as others:
        pages, waiting = server.pages.answer, threading.Semaphore(0)

        def answer(path: str) -> serving.Answer:
            waiting.release()
            assert go_on.wait(60)
            return pages(path)

        monkeypatch.setattr(server.pages, "answer", answer)
        first = [others.submit(get, server.address, "/healthz") for _ in range(2)]
        assert all(waiting.acquire(timeout=60) for _ in first)
        with pytest.raises((OSError, http.client.HTTPException)):
            get(server.address, "/healthz")
        go_on.set()
        assert [each.result(30)[0] for each in first] == [200, 200]
        wait_until(lambda: _answers(server.address), 60)


def _answers(address: str) -> bool:
    try:
        return get(address, "/healthz")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.parametrize("listen", ["9464", "localhost", "localhost:", ":9464", "localhost:70000", "localhost:x"])
def test_an_address_that_is_none_is_refused(listen: str) -> None:
    with pytest.raises(errors.ConfigError, match="looks like"):
        address_of(listen)


def test_addresses() -> None:
    assert address_of("0.0.0.0:9464") == ("0.0.0.0", 9464)
    assert address_of("[::1]:80") == ("::1", 80)


def test_an_address_in_use_is_said(desk: Desk) -> None:
    with served(desk.store) as server, pytest.raises(errors.ConfigError, match="cannot listen on 127"):
        Server(server.address, SignalPages(Reader(desk.store, Policy())))


def test_the_program_serves_without_a_single_write_and_ends_when_told(postgres_url: str, tmp_path: Path) -> None:
    """Its user may only read: a write of any kind would fail."""
    store = open_store(f"atomic+{postgres_url}", Settings())
    store.schema.migrate()
    store.close()
    parts = urlsplit(postgres_url)
    read_only = parts._replace(query="options=-c%20default_transaction_read_only%3Don").geturl()
    cli = project(tmp_path, f"atomic+{read_only}")
    program = subprocess.Popen(
        cli.command("atomic", "metrics", "--listen", "127.0.0.1:0", "--json", "--max-hosts", "3"),
        cwd=cli.directory,
        env=cli.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        ready = json.loads(program.stdout.readline())
        assert ready["event"] == "ready"
        assert json.loads(get(ready["listen"], "/scaling")[1])["maxHosts"] == 3
        assert metrics(ready["listen"])["atomic_fleet_store_up"] == 1
        promtool("check", "metrics", stdin=get(ready["listen"], "/metrics")[1])
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 0
    finally:
        program.kill()
        program.communicate()
