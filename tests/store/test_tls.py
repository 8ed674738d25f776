"""What leaves the machine is encrypted, and a cloud's token goes only to a server that proves who it is.

The server has a certificate of a test authority for 127.0.0.1. The URLs say 127.1: the same address, but not one that
is known for a loopback address, as any name of another machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from atomic_celery.config import Settings
from atomic_celery.errors import ConfigError, StoreUnavailable
from atomic_celery.store import open_store
from atomic_celery.store.urls import StoreUrl
from tests.support.binaries import unprivileged
from tests.support.postgres import PostgresServer

ELSEWHERE = "127.1"


class Certificates:
    """An authority, a server's certificate, and another authority that nobody asked."""

    def __init__(self, directory: Path) -> None:
        account = unprivileged()
        account.own(directory)
        authority, stranger = trustme.CA(), trustme.CA()
        self.root, self.strange_root = directory / "root.pem", directory / "strange.pem"
        authority.cert_pem.write_to_path(self.root)
        stranger.cert_pem.write_to_path(self.strange_root)
        self.key, self.chain = directory / "server.key", directory / "server.pem"
        server = authority.issue_cert("127.0.0.1")
        server.private_key_pem.write_to_path(self.key)
        for part in server.cert_chain_pems:
            part.write_to_path(self.chain, append=True)
        self.key.chmod(0o600)
        for file in (self.key, self.chain):
            account.own(file)


@pytest.fixture(scope="module")
def certificates() -> Iterator[Certificates]:
    with tempfile.TemporaryDirectory(prefix="atomic-tls-") as directory:
        yield Certificates(Path(directory))


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[PostgresServer]:
    settings = {"ssl": "on", "ssl_cert_file": str(certificates.chain), "ssl_key_file": str(certificates.key)}
    with PostgresServer(settings=settings) as server:
        yield server


@pytest.fixture(params=["psycopg2", "psycopg"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def url_of(server: PostgresServer, driver: str, said: str = "", host: str = ELSEWHERE) -> str:
    parts = urlsplit(server.url("postgres"))
    return f"postgresql+{driver}://{parts.username}:{parts.password}@{host}:{parts.port}/postgres{said}"


def encrypted(url: str) -> bool:
    """Whether a session of ours is, by the server's word."""
    store = open_store(url, Settings())
    try:
        with store._database.own_connection() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            [(answer,)] = cursor.fetchall()
            return bool(answer)
    finally:
        store.close()


def test_what_leaves_the_machine_is_encrypted_without_a_word(server: PostgresServer, driver: str) -> None:
    assert encrypted(url_of(server, driver))


def test_the_url_may_say_otherwise(server: PostgresServer, driver: str) -> None:
    assert not encrypted(url_of(server, driver, "?sslmode=disable"))


def test_a_server_without_tls_is_an_error(own_postgres: PostgresServer, driver: str) -> None:
    with pytest.raises(StoreUnavailable, match="does not support SSL"):
        encrypted(url_of(own_postgres, driver))
    assert not encrypted(url_of(own_postgres, driver, host="127.0.0.1"))


def test_a_server_is_known_by_its_authority(server: PostgresServer, certificates: Certificates, driver: str) -> None:
    assert encrypted(url_of(server, driver, f"?sslmode=verify-full&sslrootcert={certificates.root}"))
    with pytest.raises(StoreUnavailable, match="certificate verify failed"):
        encrypted(url_of(server, driver, f"?sslmode=verify-full&sslrootcert={certificates.strange_root}"))


def test_a_server_is_known_by_its_name(server: PostgresServer, certificates: Certificates, driver: str) -> None:
    by_name = f"&sslrootcert={certificates.root}"
    with pytest.raises(StoreUnavailable, match="does not match host name"):
        encrypted(url_of(server, driver, f"?sslmode=verify-full{by_name}", host="localhost"))
    assert encrypted(url_of(server, driver, f"?sslmode=verify-ca{by_name}", host="localhost"))


@pytest.mark.parametrize("auth", ["aws", "azure"])
def test_a_token_goes_only_to_a_server_that_proves_who_it_is(
    auth: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    def asked(said: str, environ: dict[str, str] | None = None) -> str:
        return StoreUrl.parse(f"postgresql://u@db{said}").connect_parameters(5, environ or {}, auth=auth)["sslmode"]

    with pytest.raises(ConfigError, match=rf"auth {auth} sends a token.*sslrootcert="):
        asked("/db")
    assert asked(f"/db?sslrootcert={certificates.root}") == "verify-full"
    assert asked("/db", {"PGSSLROOTCERT": str(certificates.root)}) == "verify-full"
    assert asked("/db?sslmode=require") == "require"
    (tmp_path / ".postgresql").mkdir()
    (tmp_path / ".postgresql" / "root.crt").touch()
    assert asked("/db") == "verify-full"


def test_cloud_sql_signs_for_no_name_and_is_encrypted_at_least() -> None:
    asked = StoreUrl.parse("postgresql://u@db/db").connect_parameters(5, {}, auth="gcp")
    assert asked["sslmode"] == "require"


def test_a_proxy_on_this_machine_is_trusted_with_a_token() -> None:
    assert "sslmode" not in StoreUrl.parse("postgresql://u@127.0.0.1/db").connect_parameters(5, {}, auth="aws")
