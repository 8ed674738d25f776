"""The proxy breaks a connection in the way a test asked for, and mends it."""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

import psycopg2
import pytest

from tests.support.postgres import Postgres
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

LOST_CONNECTION = (psycopg2.OperationalError, psycopg2.InterfaceError)


@pytest.fixture
def url(proxy: Proxy, postgres_url: str) -> str:
    return proxy.url(postgres_url)


class Session:
    """A connection whose statements run on a thread, so that a test can watch them hang."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg2.connect(url)
        self.connection.autocommit = True
        self.answer: object = None
        self.thread = threading.Thread()

    def begin(self, statement: str) -> None:
        self.thread = threading.Thread(target=self._run, args=[statement])
        self.thread.start()

    def finish(self) -> object:
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.answer

    def ask(self, statement: str) -> object:
        self.begin(statement)
        return self.finish()

    def _run(self, statement: str) -> None:
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(statement)
                self.answer = cursor.fetchone() if cursor.description else "done"
        except LOST_CONNECTION as error:
            self.answer = error


def test_it_forwards(url: str, proxy: Proxy) -> None:
    session = Session(url)
    assert session.ask("SELECT 1") == (1,)
    assert proxy.connection_count == 1
    session.connection.close()
    wait_until(lambda: proxy.connection_count == 0, 60)


def test_a_paused_request_arrives_after_restore(url: str, proxy: Proxy, postgres: Postgres, postgres_url: str) -> None:
    session = Session(url)
    proxy.pause()
    session.begin("CREATE TABLE late ()")
    wait_until(lambda: any(link.waiting for link in proxy.links()), 60)
    assert not _exists(postgres, postgres_url, "late")

    proxy.restore()

    assert session.finish() == "done"
    assert _exists(postgres, postgres_url, "late")


def test_a_swallowed_request_never_arrives(url: str, proxy: Proxy, postgres: Postgres, postgres_url: str) -> None:
    session = Session(url)
    proxy.blackhole()
    session.begin("CREATE TABLE swallowed ()")
    wait_until(lambda: any(link.swallowed for link in proxy.links()), 60)

    proxy.restore()

    assert isinstance(session.finish(), LOST_CONNECTION)
    assert not _exists(postgres, postgres_url, "swallowed")
    assert Session(url).ask("SELECT 1") == (1,)


def test_drop_cuts_and_refuses_until_restore(url: str, proxy: Proxy) -> None:
    session = Session(url)
    proxy.drop()

    assert isinstance(session.ask("SELECT 1"), LOST_CONNECTION)
    with pytest.raises(psycopg2.OperationalError, match="refused"):
        psycopg2.connect(url)

    proxy.restore()
    assert Session(url).ask("SELECT 1") == (1,)


def test_only_the_held_request_waits(url: str, proxy: Proxy) -> None:
    writer, reader = Session(url), Session(url)
    writer.ask("BEGIN")
    proxy.hold(b"COMMIT")
    writer.begin("COMMIT")
    wait_until(lambda: any(link.waiting for link in proxy.links()), 60)

    assert reader.ask("SELECT 1") == (1,)
    assert writer.thread.is_alive()

    proxy.restore()
    assert writer.finish() == "done"


def test_a_lost_answer_was_carried_out(url: str, proxy: Proxy, postgres: Postgres, postgres_url: str) -> None:
    session, bystander = Session(url), Session(url)
    lost = proxy.drop_next_response(b"COMMIT", after=b"CREATE TABLE unanswered")
    assert bystander.ask("BEGIN; SELECT 1; COMMIT") == "done"

    session.ask("BEGIN")
    session.ask("CREATE TABLE unanswered ()")
    answer = session.ask("COMMIT")

    assert isinstance(answer, LOST_CONNECTION)
    assert lost.wait(60)
    assert _exists(postgres, postgres_url, "unanswered")
    assert bystander.ask("SELECT 1") == (1,)


def _exists(postgres: Postgres, url: str, table: str) -> bool:
    [(found,)] = postgres.execute(f"SELECT to_regclass('{table}') IS NOT NULL", database=urlsplit(url).path[1:])
    return bool(found)
