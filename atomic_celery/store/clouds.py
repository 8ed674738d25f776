"""The clouds whose own identity opens their databases, and how each makes a token that serves as a password.

Each is asked through the library of its vendor, which finds the identity of the machine by the vendor's rules:
environment, workload identity, metadata service. The library is imported when a token is first needed.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from atomic_celery import clock, errors
from atomic_celery.store.urls import StoreUrl

_LIBRARIES: dict[str, str] = {"aws": "boto3", "gcp": "google.auth", "azure": "azure.identity"}
_GCP_SCOPE = "https://www.googleapis.com/auth/sqlservice.login"
_AZURE_SCOPE = "https://ossrdbms-aad.database.windows.net/.default"
_AWS_HOST = re.compile(r"\.(?P<region>[a-z0-9-]+)\.rds\.amazonaws\.com(\.cn)?\.?\Z", re.IGNORECASE)

# The token itself lives for 15 minutes, and no longer than the role's credentials that signed it: boto3 renews
# these when they have 10 left.
_AWS_LIFE_S = 600.0


@dataclass(frozen=True, slots=True)
class Login:
    """The server and role that a token is for."""

    host: str
    port: int
    user: str


@dataclass(frozen=True, slots=True)
class Minted:
    """A token, fresh from its cloud."""

    secret: str
    lives_s: float

    def __repr__(self) -> str:
        return f"Minted(lives_s={self.lives_s:g})"


Mint = Callable[[], Minted]


def missing_library(cloud: str) -> errors.ConfigError | None:
    """Return the error of a library that is not installed, if it is not; it names the extra that brings it."""
    library = _LIBRARIES[cloud]
    try:
        found = importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:  # the package around it
        found = False
    if found:
        return None
    return errors.ConfigError(f"auth {cloud} needs {library}: pip install 'atomic_celery[{cloud}]'")


def login_of(cloud: str, url: StoreUrl, environ: Mapping[str, str] = os.environ) -> Login:
    """Return whom and what a token of *cloud* for *url* is for.

    Raises:
        ConfigError: The URL leaves it open, or says it in a way that the cloud would refuse.
    """
    said = dict(url.parameters)
    host = said.get("host") or environ.get("PGHOST", "")
    user = said.get("user") or environ.get("PGUSER", "")
    port = said.get("port") or environ.get("PGPORT", "") or "5432"
    if not host or not user or "," in host:
        raise errors.ConfigError(f"auth {cloud} needs a URL with one host and a user: postgresql://user@host/dbname")
    if cloud == "gcp" and user.endswith(".gserviceaccount.com"):
        short = user.removesuffix(".gserviceaccount.com").replace("@", "%40")
        raise errors.ConfigError(
            f"Cloud SQL knows a service account without .gserviceaccount.com: write {short} for the user"
        )
    return Login(host, int(port), user)


def minter(cloud: str, login: Login) -> Mint:
    """Return what makes tokens of *cloud* for *login*.

    Raises:
        ConfigError: The library is not installed, or something is not set that it needs.
    """
    if missing := missing_library(cloud):
        raise missing
    return {"aws": _aws, "gcp": _gcp, "azure": _azure}[cloud](login)


def _aws(login: Login) -> Mint:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    named = _AWS_HOST.search(login.host)
    session: Any = boto3.Session()
    region = named["region"] if named else session.region_name
    if region is None:
        raise errors.ConfigError("auth aws: the host does not tell the region of the database; set AWS_REGION")
    client: Any = session.client("rds", region_name=region)

    def mint() -> Minted:
        try:
            secret = client.generate_db_auth_token(
                DBHostname=login.host, Port=login.port, DBUsername=login.user, Region=region
            )
        except (BotoCoreError, ClientError) as error:
            raise _no_token("aws", error) from error
        return Minted(str(secret), _AWS_LIFE_S)

    return mint


def _gcp(_login: Login) -> Mint:
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    known: list[Any] = []  # found once: looking for a machine's identity takes seconds where there is none

    def mint() -> Minted:
        try:
            if not known:
                credentials, _project = google.auth.default(scopes=[_GCP_SCOPE])
                known.append(credentials)
            [identity] = known
            identity.refresh(Request())
        except GoogleAuthError as error:
            raise _no_token("gcp", error) from error
        return Minted(str(identity.token), _seconds_until(identity.expiry))

    return mint


def _azure(_login: Login) -> Mint:
    from azure.core.exceptions import AzureError
    from azure.identity import DefaultAzureCredential

    identity: Any = DefaultAzureCredential()

    def mint() -> Minted:
        try:
            token = identity.get_token(_AZURE_SCOPE)
        except AzureError as error:
            raise _no_token("azure", error) from error
        return Minted(str(token.token), token.expires_on - clock.wall_s())

    return mint


def _seconds_until(expiry: Any) -> float:
    """Return the seconds until a moment that google-auth writes in UTC without saying so."""
    from datetime import timezone

    moment_s: float = expiry.replace(tzinfo=timezone.utc).timestamp()
    return moment_s - clock.wall_s()


def _no_token(cloud: str, error: Exception) -> errors.StoreUnavailable:
    first_line = next(iter(str(error).splitlines()), "")
    return errors.StoreUnavailable(f"auth {cloud}: no token for the database: {type(error).__name__}: {first_line}")
