"""Database URLs mean what libpq says they mean, and never show a secret."""

from __future__ import annotations

import os
import string
from pathlib import Path
from urllib.parse import quote

import psycopg2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg2.extensions import parse_dsn

from atomic_celery.config import Settings
from atomic_celery.errors import ConfigError, StoreUnavailable
from atomic_celery.store.store import open_store
from atomic_celery.store.urls import StoreUrl
from tests.support.daemons import free_port
from tests.support.postgres import PostgresServer

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://",
        "postgresql:///db",
        "postgresql://host",
        "postgresql://host:5433/db",
        "postgresql://user@host/db",
        "postgresql://user:pass@host/db",
        "postgresql://user:p%40ss%2Fw%3Ard%25@host/db",
        "postgresql://user:pass?word#1@host/db",
        "postgresql://us%20er:p+q@host/d%20b",
        "postgresql://[::1]:5433/db",
        "postgresql://[2001:db8::1]/db",
        "postgresql://one:5433,two:5434/db?target_session_attrs=read-write",
        "postgresql://one,two:5434,[::1]/db",
        "postgresql://%2Frun%2Fpostgresql/db",
        "postgresql://%2Frun%2Fpostgresql:5433/db",
        "postgresql://user@/db?host=/run/postgresql",
        "postgresql:///db?host=one&port=5433&user=me&password=pw",
        "postgresql://ignored/db?host=one",
        "postgresql://host/db?sslmode=verify-full&sslrootcert=/etc/ca.pem&sslcert=c&sslkey=k",
        "postgresql://host/db?ssl=true",
        "postgresql://host/db?options=-c%20search_path%3Da+b",
        "postgresql://host/db?application_name=caf%C3%A9",
    ],
)
def test_a_url_means_what_libpq_says_it_means(text: str) -> None:
    meant = dict(StoreUrl.parse(f"atomic+{text}").parameters)
    assert meant == _as_libpq_reads(text)


def _as_libpq_reads(text: str) -> dict[str, str]:
    return {name: value for name, value in parse_dsn(text).items() if name not in ("host", "port") or value.strip(",")}


@pytest.mark.parametrize(
    ("scheme", "driver"),
    [
        ("atomic+postgresql", "psycopg2"),
        ("atomic+postgres", "psycopg2"),
        ("atomic+postgresql+psycopg2", "psycopg2"),
        ("atomic+postgresql+psycopg", "psycopg"),
        ("postgresql", "psycopg2"),
        ("postgres", "psycopg2"),
        ("postgresql+psycopg2", "psycopg2"),
        ("postgresql+psycopg", "psycopg"),
        ("PostgreSQL", "psycopg2"),
    ],
)
def test_a_scheme_names_the_driver(scheme: str, driver: str) -> None:
    url = StoreUrl.parse(f"{scheme}://host/db")
    assert (url.dialect, url.driver) == ("postgresql", driver)
    assert url.sqlalchemy_url().drivername == f"postgresql+{driver}"
    assert str(url) == f"atomic+postgresql{'+psycopg' if driver == 'psycopg' else ''}://host/db"
    url.require_driver()


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
HOST = st.one_of(
    st.text(string.ascii_lowercase + string.digits + ".-", min_size=1, max_size=12),
    st.just("::1"),
    st.text(string.ascii_letters + " @%:?#", max_size=8).map("/run/{}".format),
)


@given(user=TEXT, password=TEXT, database=TEXT, hosts=st.lists(HOST, min_size=1, max_size=3))
@example(user="a/b", password="@:/?#%&+;", database="d/b", hosts=["/run/a b", "::1"])
def test_whatever_it_consists_of_a_url_survives_being_written_out(
    user: str, password: str, database: str, hosts: list[str]
) -> None:
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    where = ",".join(f"[{host}]" if host == "::1" else quote(host, safe="") for host in hosts)
    url = StoreUrl.parse(f"atomic+postgresql://{login}@{where}/{quote(database, safe='')}")

    assert StoreUrl.parse(url.reveal()) == url
    assert _as_libpq_reads(url.reveal().removeprefix("atomic+")) == dict(url.parameters)
    assert dict(url.parameters)["password"] == url.password == password


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://user:{SECRET}@host/db",
        f"postgresql://:{SECRET}@host/db",
        f"postgresql:///db?password={SECRET}&sslpassword={SECRET}",
        f"postgresql:///db?oauth_client_secret={SECRET}&scram_client_key={SECRET}",
        f"postgresql+psycopg://user:{SECRET}@one,two/db",
    ],
)
def test_no_secret_is_ever_shown(text: str) -> None:
    url = StoreUrl.parse(text)
    shown = [str(url), repr(url), f"{url}", repr(url.sqlalchemy_url()), str([url])]
    assert all(SECRET not in each for each in shown)
    assert SECRET in url.reveal()
    assert SECRET not in str(url.connect_parameters(5).get("password"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "looks like"),
        ("host/db", "looks like"),
        (f"user:{SECRET}://host", "looks like"),
        ("mysql://host/db", "use postgresql or sqlite"),
        ("atomic+postgresq://host/db", r"did you mean postgres(ql)?\?"),
        ("atomic+postgresql+asyncpg://host/db", "'asyncpg' is not supported; use psycopg2 or"),
        (f"postgresql://user:{SECRET}/x@host/db", "@ too many"),
        (f"postgresql://user:{SECRET}@x@host/db", "@ too many"),
        (f"postgresql://user:{SECRET}%zz@host/db", "a % in the password"),
        (f"postgresql://user:{SECRET}%ff@host/db", "the password is not UTF-8"),
        (f"postgresql://user:{SECRET}%00@host/db", "the password contains %00"),
        (f"postgresql://user:{SECRET}:@host:x{SECRET}/db", "a port is a number"),
        (f"postgresql://host:{SECRET}", "a port is a number"),
        ("postgresql://host:0/db", "a port is a number"),
        ("postgresql://host:65536/db", "a port is a number"),
        ("postgresql://::1/db", "stands in brackets"),
        ("postgresql:///db?host=a,b,c&port=1,2", "3 hosts but 2 ports"),
        ("postgresql://host/db?sslmod=require", "unknown.*'sslmod'; did you mean 'sslmode'"),
        ("postgresql://host/db?sslmode=on", "sslmode is one of disable, allow"),
        ("postgresql://host/db?replication=true", "unknown connection parameter 'replication'"),
        ("postgresql://host/db?user=a&user=b", "user is given twice"),
        (f"postgresql://host/db?x{SECRET}=1", "a parameter is unknown"),
    ],
)
def test_a_bad_url_is_refused_with_advice_and_without_quoting_it(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        StoreUrl.parse(text)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None or SECRET not in str(refused.value.__cause__)


def test_a_relative_sqlite_path_is_relative_to_where_the_process_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = StoreUrl.parse("atomic+sqlite:///data/fleet.db")
    monkeypatch.chdir("/")
    assert url.path == os.path.join(tmp_path, "data", "fleet.db")
    assert url == StoreUrl.parse(str(url))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("sqlite:////var/lib/fleet.db", "/var/lib/fleet.db"),
        ("atomic+sqlite:////var/lib/a%20b%3F.db", "/var/lib/a b?.db"),
        ("sqlite+pysqlite:////var//lib/../fleet.db", "/var/fleet.db"),
    ],
)
def test_an_absolute_sqlite_path_has_four_slashes(text: str, path: str) -> None:
    url = StoreUrl.parse(text)
    assert (url.dialect, url.driver, url.path) == ("sqlite", "pysqlite", path)
    assert url.sqlalchemy_url().database == path
    assert StoreUrl.parse(str(url)) == url


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("atomic+sqlite://", "in-memory.*no worker could see"),
        ("atomic+sqlite:///", "in-memory"),
        ("atomic+sqlite:///:memory:", "in-memory"),
        ("sqlite:///file:fleet?mode=memory", "takes no parameters"),
        ("sqlite:///file:fleet", "in-memory"),
        ("sqlite:///fleet.db?timeout=5", "takes no parameters"),
        ("sqlite://host/fleet.db", "has no host"),
        ("sqlite:///data/", "not a directory"),
    ],
)
def test_a_sqlite_database_is_a_file(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        StoreUrl.parse(text)


LOCAL = ["", "localhost", "LOCALHOST.", "127.0.0.1", "127.8.9.1", "[::1]", "[::ffff:127.0.0.1]"]


@pytest.mark.parametrize("host", [*LOCAL, "%2Frun%2Fpostgresql", "@abstract", "localhost,127.0.0.1"])
def test_tls_is_not_asked_for_where_no_byte_leaves_the_machine(host: str) -> None:
    said = StoreUrl.parse(f"postgresql://u@{quote(host, safe='%[]:,')}/db")
    assert "sslmode" not in said.connect_parameters(5, environ={})


@pytest.mark.parametrize("host", ["db.example.com", "10.0.0.1", "[2001:db8::1]", "localhost,db", "127.1.example"])
def test_tls_is_a_must_on_the_way_to_another_machine(host: str) -> None:
    assert StoreUrl.parse(f"postgresql://{host}/db").connect_parameters(5, {})["sslmode"] == "require"


@pytest.mark.parametrize("sslmode", ["disable", "prefer", "verify-full"])
def test_the_url_has_the_last_word_on_tls(sslmode: str) -> None:
    url = StoreUrl.parse(f"postgresql://db.example.com/db?sslmode={sslmode}")
    assert url.connect_parameters(5, {"PGSSLMODE": "require"})["sslmode"] == sslmode


@pytest.mark.parametrize(
    ("environ", "sslmode"),
    [
        ({"PGSSLMODE": "verify-full"}, "verify-full"),
        ({"PGSSLMODE": "disable"}, "require"),
        ({"PGSSLMODE": "nonsense"}, "require"),
    ],
)
def test_the_environment_can_only_strengthen_tls(environ: dict[str, str], sslmode: str) -> None:
    url = StoreUrl.parse("postgresql://db.example.com/db")
    assert url.connect_parameters(5, environ)["sslmode"] == sslmode


def test_the_address_that_is_really_connected_to_decides_about_tls() -> None:
    outside = StoreUrl.parse("postgresql://localhost/db?hostaddr=10.0.0.1")
    inside = StoreUrl.parse("postgresql://db.example.com/db?hostaddr=127.0.0.1")
    assert outside.connect_parameters(5, {})["sslmode"] == "require"
    assert "sslmode" not in inside.connect_parameters(5, {})
    assert StoreUrl.parse("postgresql:///db").connect_parameters(5, {"PGHOST": "db"})["sslmode"]


@pytest.mark.parametrize(("text", "environ"), [("?service=x", {}), ("", {"PGSERVICE": "x"})])
def test_a_service_file_cannot_turn_tls_off_unsaid(text: str, environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"must say \?sslmode"):
        StoreUrl.parse(f"postgresql:///db{text}").connect_parameters(5, environ)
    said = StoreUrl.parse(f"postgresql:///db?sslmode=require&{text[1:]}")
    assert said.connect_parameters(5, environ)["sslmode"] == "require"


def test_what_the_url_says_wins_over_our_bounds() -> None:
    plain = StoreUrl.parse("postgresql://h/db").connect_parameters(4.2)
    asked = StoreUrl.parse("postgresql://h/db?connect_timeout=60&keepalives_idle=99")
    assert plain["connect_timeout"] == "5"
    assert asked.connect_parameters(4.2)["connect_timeout"] == "60"
    assert asked.connect_parameters(4.2)["keepalives_idle"] == "99"


def test_the_parameters_open_a_real_connection(postgres_url: str) -> None:
    url = StoreUrl.parse(f"atomic+{postgres_url}")
    connection = psycopg2.connect(**url.connect_parameters(5), password=url.password)
    try:
        assert connection.info.parameter_status("client_encoding") == "UTF8"
        assert connection.info.dsn_parameters["keepalives_idle"] == "10"
    finally:
        connection.close()


def test_every_way_to_write_where_a_server_is_leads_there(own_postgres: PostgresServer) -> None:
    closed, port, password = free_port(), own_postgres.port, own_postgres.password
    [(directory,)] = own_postgres.execute("SHOW unix_socket_directories")
    socket = quote(directory, safe="")
    for text in (
        f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres",
        f"postgresql://postgres:{password}@/postgres?host={directory}&port={port}",
        f"postgresql://postgres:{password}@{socket}:{port}/postgres",
        f"postgresql://postgres:{password}@127.0.0.1:{closed},127.0.0.1:{port}/postgres",
        f"postgresql://127.0.0.1:{closed},{socket}:{port}/postgres?user=postgres&password={password}",
        f"postgresql://postgres:{password}@localhost:{port}/?target_session_attrs=read-write",
    ):
        for driver in ("psycopg2", "psycopg"):
            store = open_store(f"atomic+{text}".replace(":", f"+{driver}:", 1), Settings())
            assert store.schema.version() is None
            store.close()


def test_a_server_without_tls_is_refused_where_tls_is_a_must(postgres_url: str) -> None:
    store = open_store(f"{postgres_url}?sslmode=require", Settings())
    with pytest.raises(StoreUnavailable, match="server does not support SSL"):
        store.schema.version()
    store.close()


def test_a_missing_driver_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"psycopg is not installed: pip install 'atomic_celery\[psycopg3\]'"):
        StoreUrl.parse("postgresql+psycopg://h/db").require_driver()
    StoreUrl.parse("sqlite:///fleet.db").require_driver()
