"""Where the password of a connection comes from, asked again for every new one.

A secret from a file is held only while a connection is being opened. Files are not cached, so a password that
another process keeps fresh needs no restart; open sessions outlive the secret they began with. The token of a
cloud's identity is made here (`tokens`), and kept until it nears its end.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Engine, event

from atomic_celery import errors, secret_files
from atomic_celery.config import Settings
from atomic_celery.store import clouds, tokens
from atomic_celery.store.urls import StoreUrl

logger = logging.getLogger(__name__)


class Credential(Protocol):
    """One way to prove who we are."""

    def secret(self) -> str | None:
        """Return the password to use for a connection opened now; None leaves it to libpq.

        Raises:
            StoreUnavailable: There is none at the moment.
        """
        ...

    def doubt(self, secret: str | None) -> None:
        """Hear that a connection could not be opened with *secret*, for whatever reason."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class UrlPassword:
    """The password in the URL, or libpq's own means (a ``.pgpass`` file, peer, certificates)."""

    url: StoreUrl

    def secret(self) -> str | None:
        """Return the URL's password."""
        return self.url.password

    def doubt(self, secret: str | None) -> None:
        """Do nothing: there is no other."""

    def __repr__(self) -> str:
        return f"UrlPassword({str(self.url)!r})"


class Look(NamedTuple):
    """What was found in a file; empty texts for what is well."""

    secret: str = ""
    fault: str = ""
    """What is wrong, in words that follow the file's name."""
    fix: str = ""
    exposed: str = ""
    """The mode by which other users can read it."""


class SecretFile:
    """A file that holds the password, alone on its first line.

    Args:
        setting: What to call the file in messages: ``password_file`` or ``token_file``.
    """

    def __init__(self, setting: str, path: str) -> None:
        self._setting, self._path = setting, Path(path).expanduser().absolute()
        self._warned = False

    def secret(self) -> str:
        """Read the file.

        Raises:
            SecretUnusable: It cannot be read, or is empty; a later try may find it written.
        """
        seen = self.look()
        if seen.exposed and not self._warned:
            self._warned = True
            logger.warning(
                "other users can read %s %s (%s): chmod 600 %s", self._setting, self._path, seen.exposed, self._path
            )
        if seen.fault:
            raise errors.SecretUnusable(f"{self._setting} {self._path} {seen.fault}", seen.fix)
        return seen.secret

    def look(self) -> Look:
        """Read the file, and say what is wrong with it."""
        try:
            content = secret_files.read(self._path)
        except OSError as error:
            return Look(fault=f"cannot be read: {error.strerror}", fix="make it readable, or name another")
        secret = content.text.strip("\r\n")
        exposed = f"mode {content.mode:04o}" if content.is_exposed else ""
        fault = _fault(secret)
        return Look(secret, fault, "write the secret into it and nothing else" if fault else "", exposed)

    def doubt(self, secret: str | None) -> None:
        """Do nothing: the file is read for every connection anyway."""

    def __repr__(self) -> str:
        return f"SecretFile({self._setting!r}, {str(self._path)!r})"


def _fault(secret: str) -> str:
    if not secret:
        return "is empty"
    if "\0" in secret:
        return "holds NUL, which is in no password"
    return "holds more than one line" if "\n" in secret else ""


def choose(url: StoreUrl, settings: Settings) -> Credential:
    """Return the one credential that *url* and *settings* name.

    Raises:
        ConfigError: They name more than one, or one for a database that takes none, or one that cannot work here.
    """
    files = [
        SecretFile(setting, path) for setting in ("password_file", "token_file") if (path := getattr(settings, setting))
    ]
    named = [*map(repr, files), *([f"auth {settings.auth}"] if settings.auth else [])]
    if named and url.dialect == "sqlite":
        raise errors.ConfigError(f"{named[0]}: a SQLite file takes no password")
    named += ["the URL"] if url.password is not None else []
    if len(named) > 1:
        raise errors.ConfigError(f"a password comes from {' and '.join(named)}; keep exactly one of them")
    if settings.auth:
        return tokens.of(settings.auth, clouds.login_of(settings.auth, url), settings.connect_timeout_s)
    return files[0] if files else UrlPassword(url)


def present(credential: Credential, engine: Engine) -> None:
    """Make *engine* ask *credential* for every physical connection that it opens."""

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, _record: Any, arguments: Any, parameters: dict[str, Any]) -> Any:
        secret = credential.secret()
        given = parameters if secret is None else {**parameters, "password": secret}
        try:
            return dialect.connect(*arguments, **given)
        except Exception:
            credential.doubt(secret)
            raise
