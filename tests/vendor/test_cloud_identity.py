"""The vendors' own libraries, against metadata services of this machine (-m vendor)."""

from __future__ import annotations

import hashlib
import hmac
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, quote, urlsplit

import pytest

from tests.support.metadata import ACCESS_KEY, SECRET_KEY, SESSION, MetadataService
from tests.support.roles import Role
from tests.support.workers import ROOT, Fleet

pytestmark = pytest.mark.vendor

SECRETS = """
import sys
from atomic_celery.config import Settings
from atomic_celery.errors import AtomicError
from atomic_celery.store import credentials
from atomic_celery.store.urls import StoreUrl
try:
    chosen = credentials.choose(StoreUrl.parse(sys.argv[2]), Settings(auth=sys.argv[1]))
    print(*{chosen.secret() for _ in range(5)})
except AtomicError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
_IDENTITIES = ("AWS_", "AZURE_", "CLOUDSDK_", "GCE_", "GOOGLE_", "IDENTITY_", "MSI_")


@pytest.fixture(params=["aws", "gcp", "azure"])
def service(request: pytest.FixtureRequest) -> Iterator[MetadataService]:
    with MetadataService(request.param) as service:
        yield service


def environ_of(service: MetadataService, home: Path) -> dict[str, str]:
    """The environment of a machine that has no identity but that of *service*."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_IDENTITIES)}
    return {**inherited, "HOME": str(home), **service.environ()}


def ask(service: MetadataService, url: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SECRETS, service.cloud, url],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env=environ_of(service, home),
        text=True,
        timeout=100,
    )


def only_secret(asked: subprocess.CompletedProcess[str]) -> str:
    assert asked.returncode == 0, asked.stderr
    [secret] = asked.stdout.split()
    return secret


AWS_HOST = "db.cabc123.eu-central-1.rds.amazonaws.com"


def test_the_library_finds_the_identity_and_is_asked_once_for_many_connections(
    service: MetadataService, tmp_path: Path
) -> None:
    secret = only_secret(ask(service, f"postgresql://worker@{AWS_HOST}/db", tmp_path))
    assert service.tokens_asked == 1
    assert secret == "token-1" or service.cloud == "aws"


def test_an_identity_that_is_away_is_a_store_that_is_unavailable(service: MetadataService, tmp_path: Path) -> None:
    service.away = True
    asked = ask(service, f"postgresql://worker@{AWS_HOST}/db", tmp_path)
    assert asked.returncode == 1
    # azure-identity goes on trying for longer than a connection waits.
    assert f"StoreUnavailable: auth {service.cloud}: no token" in asked.stderr


def test_the_token_of_aws_is_signed_by_the_machine_s_role_for_one_login(tmp_path: Path) -> None:
    with MetadataService("aws") as service:
        token = only_secret(ask(service, f"postgresql://worker@{AWS_HOST}:6543/db", tmp_path))
    url = urlsplit(f"https://{token}")
    said = {name: value for name, [value] in parse_qs(url.query).items()}
    assert url.netloc == f"{AWS_HOST}:6543"
    assert (said["Action"], said["DBUser"], said["X-Amz-Expires"]) == ("connect", "worker", "900")
    assert said["X-Amz-Security-Token"] == SESSION
    assert said["X-Amz-Credential"].startswith(f"{ACCESS_KEY}/")
    assert said["X-Amz-Credential"].endswith("/eu-central-1/rds-db/aws4_request")
    assert said["X-Amz-Signature"] == signature(url.netloc, url.query)


def signature(host: str, query: str) -> str:
    """Sign a request to connect as AWS documents signature version 4, by hand."""
    pairs = sorted((name, value) for name, value in parse_qsl(query) if name != "X-Amz-Signature")
    said = dict(pairs)
    canonical_query = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs)
    empty = hashlib.sha256(b"").hexdigest()
    request = f"GET\n/\n{canonical_query}\nhost:{host}\n\nhost\n{empty}"
    scope = said["X-Amz-Credential"].partition("/")[2]
    digest = hashlib.sha256(request.encode()).hexdigest()
    to_sign = f"AWS4-HMAC-SHA256\n{said['X-Amz-Date']}\n{scope}\n{digest}"
    key = f"AWS4{SECRET_KEY}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


def test_a_database_of_aws_under_another_name_needs_a_region(tmp_path: Path) -> None:
    with MetadataService("aws") as service:
        asked = ask(service, "postgresql://worker@db.example.com/db", tmp_path)
    assert asked.returncode == 1
    assert "ConfigError: auth aws: the host does not tell the region of the database; set AWS_REGION" in asked.stderr


@pytest.mark.parametrize("cloud", ["gcp", "azure"])
def test_a_fleet_lives_on_tokens(cloud: str, role: Role, postgres_url: str, tmp_path: Path) -> None:
    role.change_password("token-1")
    with MetadataService(cloud) as service, closing(Fleet(postgres_url, tmp_path, broker=role.url)) as fleet:
        service.lives_s = 60  # so short that no library keeps one for the next connection
        worker = fleet.worker(options=("--auth", cloud), env=environ_of(service, tmp_path)).start()
        worker.wait_line("ready", deadline_s=60)
        fleet.send("note", "before")
        fleet.wait_done(1)

        service.token = "token-2"
        role.change_password("token-2")
        fleet.send("note", "after")
        assert fleet.wait_done(2) == ["before", "after"]
        assert "token-1" not in worker.log
