"""The real process that serves the signal, and everything that clients, databases and operators do to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg2
import pytest

from atomic_celery.config import Settings
from atomic_celery.fleet import serving
from atomic_celery.store.limits import Limit
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import Holder, Lane, NewMessage
from atomic_celery.store.store import open_store
from tests.cli.conftest import CommandLine, project
from tests.fleet.test_serving import get, metrics
from tests.support.daemons import free_port
from tests.support.freezing import freeze
from tests.support.hosts import new_host
from tests.support.postgres import Postgres, PostgresServer
from tests.support.waiting import wait_until

_MAY_WRITE = """\
SELECT bool_or(has_table_privilege(oid, 'INSERT, UPDATE, DELETE, TRUNCATE'))
  FROM pg_class WHERE relkind = 'r' AND relname LIKE 'atomic%'"""


@dataclass(frozen=True)
class Program:
    """A metrics server that is ready, and where it listens."""

    process: subprocess.Popen[str]
    address: str

    def connect(self) -> socket.socket:
        """Come as a client who has not said anything."""
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=30)

    def answers(self, sent: bytes) -> bytes:
        """Return all that comes back until the connection is closed, whatever the way."""
        with closing(self.connect()) as client:
            client.sendall(sent)
            return _all_of(client)

    def is_well(self) -> bool:
        """Whether it answers who asks as usual."""
        return get(self.address, "/healthz") == (200, "ok\n")


def _all_of(client: socket.socket) -> bytes:
    got = b""
    with contextlib.suppress(ConnectionError):  # what was not read of a request resets the connection at its end
        while data := client.recv(65_536):
            got += data
    return got


@contextmanager
def running(directory: Path, url: str, *options: str, patient: bool = True) -> Iterator[Program]:
    cli = project(directory, url, patient=patient)
    command = cli.command("atomic", "metrics", "--listen", "127.0.0.1:0", "--json", *options)
    process = subprocess.Popen(command, cwd=directory, env=cli.environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Program(process, json.loads(process.stdout.readline())["listen"])
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def program(broker_url: str, tmp_path: Path) -> Iterator[Program]:
    with closing(open_store(broker_url, Settings())) as store:
        store.schema.migrate()
    with running(tmp_path, broker_url) as started:
        yield started


def test_a_thousand_scrapes_read_at_most_once_in_five_seconds(program: Program) -> None:
    began_s = time.monotonic()
    for _ in range(500):
        assert get(program.address, "/scaling")[0] == 200
        seen = metrics(program.address)
    took_s = time.monotonic() - began_s
    assert 1 <= seen["atomic_instance_reads_total"] <= 1 + took_s / 5
    assert seen["atomic_instance_read_failures_total"] == 0


def test_reads_that_fail_are_as_rare(own_postgres: PostgresServer, tmp_path: Path) -> None:
    url = own_postgres.create_database()
    with running(tmp_path, f"atomic+{url}") as program:  # without tables
        own_postgres.kill()
        began_s = time.monotonic()
        for _ in range(100):
            assert get(program.address, "/scaling")[0] == 503
            seen = metrics(program.address)
        took_s = time.monotonic() - began_s
        assert seen["atomic_fleet_store_up"] == 0
        assert 1 <= seen["atomic_instance_read_failures_total"] <= 1 + took_s / 5


def test_slow_clients_are_cut_off_and_others_are_answered_all_the_time(program: Program) -> None:
    """Many who say nothing, some who say a byte now and then, some who never read the answer."""
    process = psutil.Process(program.process.pid)
    assert program.is_well()
    with ExitStack() as stack:
        began_s = time.monotonic()

        def come() -> socket.socket:
            return stack.enter_context(closing(program.connect()))

        silent = [come() for _ in range(500)]
        deaf = [come() for _ in range(20)]
        for client in deaf:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        dripping = [come() for _ in range(20)]
        open_ones = set(dripping)
        while open_ones:
            assert program.is_well()
            assert metrics(program.address)["atomic_fleet_store_up"] == 1
            assert time.monotonic() - began_s < 60
            open_ones = {client for client in open_ones if not _is_cut_off(client)}
        assert time.monotonic() - began_s > serving.CLIENT_LIMIT_S - 1
        assert all(_all_of(client) == b"" for client in silent)
        assert all(b"atomic_fleet_store_up 1" in _all_of(client) for client in deaf)
    assert program.is_well()
    wait_until(lambda: process.num_threads() <= 3 and len(_connections(process)) <= 1, 60)


def _is_cut_off(client: socket.socket) -> bool:
    client.settimeout(0.02)
    try:
        client.sendall(b"G")
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def _connections(process: psutil.Process) -> list[object]:
    """Those of clients."""
    port = process.net_connections("tcp")
    listening = {each.laddr for each in port if each.status == psutil.CONN_LISTEN}
    return [each for each in port if each.laddr in listening and each.status == psutil.CONN_ESTABLISHED]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
        (b"GET /scaling?a=b HTTP/1.1\r\nConnection: keep-alive\r\n\r\n", 200),
        (b"GET http://elsewhere/healthz HTTP/1.1\r\n\r\n", 404),
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"POST /scaling HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 405),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", 405),
        (b"<script>alert(1)</script> / HTTP/1.1\r\n\r\n", 405),
        (b"\r\n\r\n", None),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # somebody speaks TLS
        (b"nonsense\r\n\r\n", 400),
        (b"GET /metrics HTTP/9.9\r\n\r\n", 505),
        (b"GET /metrics HTTP/x\r\n\r\n", 400),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
    ],
)
def test_requests_that_are_none(shared_program: Program, sent: bytes, status: int | None) -> None:
    """Each gets the answer that it deserves, with nothing of it repeated, and the next one is served."""
    answer = shared_program.answers(sent)
    head, _, body = answer.partition(b"\r\n\r\n")
    # What is too large to be read to its end may reset the connection before the answer is there.
    assert head[9:12] == str(status).encode() if status and len(sent) < 70_000 else head[9:12] in (b"", b"414", b"431")
    assert head.count(b"HTTP/1.0 ") <= 1
    assert not any(part in answer for part in (b"script", b"passwd", b"nonsense", b"xxx", b"yyy"))
    if sent.startswith(b"HEAD"):
        assert (int(head.partition(b"Content-Length: ")[2].split()[0]) > 0, body) == (True, b"")
    if status == 405:
        assert b"Allow: GET, HEAD" in head
    assert shared_program.is_well()


def test_who_speaks_http_as_it_was_at_first_gets_the_body(shared_program: Program) -> None:
    assert shared_program.answers(b"GET /healthz\r\n\r\n") == b"ok\n"


def test_a_connection_has_one_request(shared_program: Program) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    assert shared_program.answers(request * 50).count(b"HTTP/1.0 200") == 1


@pytest.fixture(scope="module")
def shared_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    directory = tmp_path_factory.mktemp("served")
    url = f"atomic+sqlite:///{directory}/fleet.db"
    with closing(open_store(url, Settings(), create=True)) as store:
        store.schema.migrate()
    with running(directory, url) as started:
        yield started


def test_a_database_that_hangs_holds_up_only_who_asks_for_it(own_postgres: PostgresServer, tmp_path: Path) -> None:
    url = own_postgres.create_database()
    with closing(open_store(f"atomic+{url}", Settings())) as store:
        store.schema.migrate()
    with running(tmp_path, f"atomic+{url}", patient=False) as program:
        assert get(program.address, "/scaling")[0] == 200
        own_postgres.kill(signal.SIGSTOP)
        try:
            wait_until(lambda: get(program.address, "/scaling")[0] == 503, 60)
            wait_until(lambda: metrics(program.address)["atomic_fleet_store_up"] == 0, 60)
            assert program.is_well()
        finally:
            own_postgres.kill(signal.SIGCONT)
        wait_until(lambda: get(program.address, "/scaling")[0] == 200, 60)
        assert metrics(program.address)["atomic_fleet_store_up"] == 1


def test_it_ends_when_told_while_a_request_hangs(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """Who waits for a database that hangs would be told in time that it does; nobody is told any more."""
    url = own_postgres.create_database()
    with closing(open_store(f"atomic+{url}", Settings())) as store:
        store.schema.migrate()
    with running(tmp_path, f"atomic+{url}") as program, ExitStack() as stack:
        freeze(psutil.Process(own_postgres.pid).pid)
        stack.callback(os.kill, own_postgres.pid, signal.SIGCONT)
        waiting, silent = (stack.enter_context(closing(program.connect())) for _ in range(2))
        process = psutil.Process(program.process.pid)
        waiting.sendall(b"GET /scaling HTTP/1.1\r\n\r\n")
        wait_until(lambda: len(process.net_connections("tcp")) >= 4, 60)  # it asks the database
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(60) == 0
        assert (_all_of(waiting), _all_of(silent)) == (b"", b"")


def test_it_may_be_started_before_there_are_tables(postgres_url: str, tmp_path: Path) -> None:
    url = f"atomic+{postgres_url}"
    with running(tmp_path, url) as program:
        assert get(program.address, "/scaling")[0] == 503
        assert metrics(program.address)["atomic_fleet_store_up"] == 0
        assert CommandLine(tmp_path)("migrate").returncode == 0
        wait_until(lambda: get(program.address, "/scaling")[0] == 200, 60)


def test_it_needs_no_right_but_to_read(postgres: Postgres, postgres_url: str, tmp_path: Path) -> None:
    """As a role that can write nothing, at a fleet that has everything there is to read."""
    with closing(open_store(f"atomic+{postgres_url}", Settings())) as store:
        store.schema.migrate()
        queue = store.queues.declare(QueueSpec(name="celery")).id
        one = Limit("one", "task", max_running=1)
        store.messages.publish([NewMessage(queue, "{}", f"t{number}") for number in range(3)])
        store.messages.publish([NewMessage(queue, "{}", due_ms=store.now_ms() - 1)])
        store.messages.publish([NewMessage(queue, "{}", limit=one) for _ in range(2)])
        store.hosts.register(new_host("h1", "b1"))
        assert store.messages.claim(Holder("h1", "b1", is_host=False), [Lane(queue, 0)], 1, 30_000)
    database, parts = urlsplit(postgres_url).path[1:], urlsplit(postgres_url)
    role = f"looker_{free_port()}"
    postgres.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'looker'")
    try:
        postgres.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}", database=database)
        port = f":{parts.port}" if parts.port else ""
        url = f"postgresql://{role}:looker@{parts.hostname}{port}/{database}"
        with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
            cursor.execute(_MAY_WRITE)
            assert cursor.fetchone() == (False,)
        with running(tmp_path, f"atomic+{url}") as program:
            status, said = get(program.address, "/scaling")
            assert (status, json.loads(said)["demand"], json.loads(said)["hosts"]) == (200, 5, 1)
            assert metrics(program.address)["atomic_fleet_store_up"] == 1
    finally:
        postgres.execute(f"DROP OWNED BY {role}", database=database)
        postgres.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    "listen",
    ["9464", ":9464", "localhost", "localhost:x", "localhost:²", "127.0.0.1:65536", "::1:80", "[::1:80", "[x]:1"],
)
def test_what_is_no_address_is_used_wrongly(tmp_path: Path, listen: str) -> None:
    run = project(tmp_path, "atomic+sqlite:///fleet.db")("metrics", "--listen", listen)
    assert (run.returncode, "looks like 127.0.0.1:9464" in run.stderr) == (64, True), run.stderr
    assert f"got {listen!r}" in run.stderr
    assert "Traceback" not in run.stderr


def test_where_nobody_can_listen_is_said(tmp_path: Path) -> None:
    cli = project(tmp_path, "atomic+sqlite:///fleet.db")
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        for listen in (f"127.0.0.1:{other.getsockname()[1]}", "nobody.invalid:0", f"{'x' * 70}.example:0"):
            run = cli("metrics", "--listen", listen)
            assert (run.returncode, f"cannot listen on {listen}: " in run.stderr) == (1, True), run.stderr
            assert "Traceback" not in run.stderr


@pytest.mark.parametrize("host", ["[::1]", "[::]", "0.0.0.0", "localhost"])
def test_addresses_of_either_kind(tmp_path: Path, host: str) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        if "[" in host:
            pytest.skip("this machine has no IPv6")
    directory = tmp_path / "fleet.db"
    with running(tmp_path, f"atomic+sqlite:///{directory}", "--listen", f"{host}:0") as program:
        port = program.address.rpartition(":")[2]
        assert int(port) > 0
        asked = {"[::]": "[::1]", "0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1"}.get(host, host)
        assert get(f"{asked}:{port}", "/healthz") == (200, "ok\n")
        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(60) == 0
