"""What a database URL means: which driver, which connection parameters, and how to show it.

The grammar is libpq's (``postgresql://user:password@host:port,host/dbname?parameter=value``),
with or without ``atomic+`` in front and a driver behind the scheme. Nothing here connects, and
no error quotes what it was given: the wrong half of a URL may well be the password.
"""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, unquote_to_bytes

import sqlalchemy

from atomic_celery.errors import ConfigError
from atomic_celery.store import elsewhere, tls

Dialect = Literal["postgresql", "sqlite"]

_OUR_PREFIX = "atomic+"
_DRIVERS: dict[str, tuple[Dialect, tuple[str, ...]]] = {  # the first driver is the default
    "postgres": ("postgresql", ("psycopg2", "psycopg")),
    "postgresql": ("postgresql", ("psycopg2", "psycopg")),
    "sqlite": ("sqlite", ("pysqlite",)),
}
_OLDEST_SQLITE = (3, 35)  # the first with RETURNING
_EXTRAS = {"psycopg2": "postgres", "psycopg": "psycopg3"}

_LIBPQ = frozenset(
    {
        "application_name",
        "channel_binding",
        "connect_timeout",
        "dbname",
        "fallback_application_name",
        "gssdelegation",
        "gssencmode",
        "gsslib",
        "host",
        "hostaddr",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "krbsrvname",
        "load_balance_hosts",
        "max_protocol_version",
        "min_protocol_version",
        "oauth_client_id",
        "oauth_client_secret",
        "oauth_issuer",
        "oauth_scope",
        "options",
        "passfile",
        "password",
        "port",
        "require_auth",
        "requirepeer",
        "scram_client_key",
        "scram_server_key",
        "service",
        "servicefile",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcertmode",
        "sslcompression",
        "sslcrl",
        "sslcrldir",
        "sslkey",
        "sslkeylogfile",
        "sslmode",
        "sslnegotiation",
        "sslpassword",
        "sslrootcert",
        "sslsni",
        "target_session_attrs",
        "tcp_user_timeout",
        "user",
    }
)
_SECRETS = frozenset({"oauth_client_secret", "password", "scram_client_key", "scram_server_key", "sslpassword"})
_MASK = "***"

# A peer that vanished without a word is noticed after 10 + 3 * 5 seconds, within a lease of 30.
_DEFAULTS = {
    "client_encoding": "utf8",
    "fallback_application_name": "atomic_celery",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}


@dataclass(frozen=True, slots=True, repr=False)
class StoreUrl:
    """One database, as a URL named it. Safe to print: `str` and `repr` mask every secret."""

    dialect: Dialect
    driver: str
    path: str | None = None
    """The SQLite file, absolute."""
    parameters: tuple[tuple[str, str], ...] = field(default=())
    """What the URL says to libpq, secrets included, sorted by name."""
    alias: str | None = None
    """What a framework calls the database, as a URL: ``django://default``."""

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        """Read a URL, with or without ``atomic+`` in front.

        Raises:
            ConfigError: It is not one; says what to write instead, never what was written.
        """
        scheme, separator, rest = text.strip().partition("://")
        if not re.fullmatch(r"[A-Za-z0-9+.-]{1,40}", scheme) or not separator:
            raise ConfigError("a database URL looks like atomic+postgresql://user@host/dbname or atomic+sqlite:///path")
        if framework := elsewhere.framework_of(scheme.lower().removeprefix(_OUR_PREFIX)):
            return framework.locate(rest)
        dialect, driver = _parse_scheme(scheme)
        if dialect == "sqlite":
            return cls(dialect, driver, path=_parse_path(rest))
        return cls(dialect, driver, parameters=tuple(sorted(_parse_libpq(rest).items())))

    @property
    def password(self) -> str | None:
        """The password in the URL itself."""
        return dict(self.parameters).get("password")

    def sqlalchemy_url(self) -> sqlalchemy.URL:
        """Return what an engine needs to know, and nothing secret: the rest is in each connect.

        Raises:
            ConfigError: It is a database in the memory of one connection; a second one would not see it.
        """
        if self.dialect == "sqlite" and self.path is None:
            raise ConfigError(f"{self} is in the memory of one process; only what that publishes itself can reach it")
        return sqlalchemy.URL.create(f"{self.dialect}+{self.driver}", database=self.path)

    def connect_parameters(
        self, connect_timeout_s: float, environ: Mapping[str, str] = os.environ, *, auth: str | None = None
    ) -> dict[str, str]:
        """Return libpq's parameters for one PostgreSQL connection, all but the password.

        What the URL says wins. Beyond it: bounds in time, and TLS where bytes leave the machine.

        Args:
            auth: The cloud whose token will be the password; it decides how sure we must be of the server.

        Raises:
            ConfigError: A service file decides the host, or a certificate authority is needed and not named, so
                the URL has to say something on TLS.
        """
        said = {name: value for name, value in self.parameters if name != "password"}
        timeout = {"connect_timeout": str(max(2, math.ceil(connect_timeout_s)))}
        return {**_DEFAULTS, **timeout, **tls.ask(said, environ, auth), **said}

    def require_driver(self) -> None:
        """Make sure that the driver is installed, and new enough.

        Raises:
            ConfigError: It is not; says how to get it.
        """
        if self.dialect == "sqlite":
            _require_sqlite()
        extra = _EXTRAS.get(self.driver)
        if extra and importlib.util.find_spec(self.driver) is None:
            raise ConfigError(
                f"the database driver {self.driver} is not installed: pip install 'atomic_celery[{extra}]'"
            )

    def reveal(self) -> str:
        """Return the whole URL, secrets included: for handing it on, never for showing it."""
        return self._text(mask=False)

    def __str__(self) -> str:
        return self._text(mask=True)

    def __repr__(self) -> str:
        return f"StoreUrl({str(self)!r})"

    def _text(self, *, mask: bool) -> str:
        if self.alias is not None:
            return f"{_OUR_PREFIX}{self.alias}"
        if self.path is not None:
            return f"{_OUR_PREFIX}sqlite:///{quote(self.path)}"
        said = {name: _shown(name, value, mask=mask) for name, value in self.parameters}
        user, password = said.pop("user", ""), said.pop("password", None)
        login = user if password is None else f"{user}:{password}"
        scheme = "postgresql" if self.driver == "psycopg2" else f"postgresql+{self.driver}"
        text = f"{_OUR_PREFIX}{scheme}://{login}{'@' if login else ''}"
        text += f"{_join_hosts(dict(self.parameters))}/{said.pop('dbname', '')}"
        query = [f"{name}={value}" for name, value in said.items() if name not in ("host", "port")]
        return f"{text}?{'&'.join(query)}" if query else text


def from_libpq(said: Mapping[str, object], *, driver: str, alias: str) -> StoreUrl:
    """Return the database of libpq parameters that a framework has; what libpq does not know is left out."""
    known = {name: str(value) for name, value in said.items() if name in _LIBPQ and value not in (None, "")}
    return StoreUrl("postgresql", driver, parameters=tuple(sorted(known.items())), alias=alias)


def _shown(name: str, value: str, *, mask: bool) -> str:
    return _MASK if mask and name in _SECRETS else quote(value, safe="")


def _parse_scheme(scheme: str) -> tuple[Dialect, str]:
    base, _, driver = scheme.lower().removeprefix(_OUR_PREFIX).partition("+")
    if base not in _DRIVERS:
        near = difflib.get_close_matches(base, _DRIVERS, n=1)
        hint = f"did you mean {near[0]}?" if near else "use postgresql or sqlite"
        raise ConfigError(f"no database is called {base!r} here; {hint}")
    dialect, drivers = _DRIVERS[base]
    if driver and driver not in drivers:
        known = " or ".join(drivers)
        raise ConfigError(f"the {dialect} driver {driver!r} is not supported; use {known}")
    return dialect, driver or drivers[0]


def _parse_path(rest: str) -> str:
    body, question, _ = rest.partition("?")
    if question:
        raise ConfigError("a SQLite URL takes no parameters; write a ? in a file name as %3F")
    if body and not body.startswith("/"):
        raise ConfigError("a SQLite URL has no host: sqlite:///relative.db or sqlite:////absolute.db")
    path = _decode(body[1:], "the path")
    if path in ("", ":memory:") or path.startswith("file:"):
        raise ConfigError(
            "an in-memory SQLite database is seen by one connection only, so no worker could see "
            "what a producer wrote; name a file: sqlite:///atomic.db"
        )
    if path.endswith("/"):
        raise ConfigError("a SQLite URL names a file, not a directory")
    return os.path.abspath(path)


def _parse_libpq(rest: str) -> dict[str, str]:
    login, at, place = _split_login(rest)
    location, _, query = place.partition("?")
    authority, _, database = location.partition("/")
    if "@" in location:
        raise ConfigError("an @ too many: inside a user, a password or a name it is written %40 (and a / %2F)")
    user, _, password = login.partition(":") if at else ("", "", "")
    said = {
        "user": _decode(user, "the user"),
        "password": _decode(password, "the password"),
        "dbname": _decode(database, "the database name"),
        **_split_hosts(authority),
    }
    said = {name: value for name, value in said.items() if value}
    said.update(_parse_query(query))
    _check(said)
    if said.get("port", ",").isdigit():  # one port is the port of every host
        said["port"] = ",".join([said["port"]] * len(said.get("host", "").split(",")))
    return said


def _split_login(rest: str) -> tuple[str, str, str]:
    """Split at the first @ before the first /, as libpq does: a password may contain a ?."""
    authority, slash, tail = rest.partition("/")
    login, at, hosts = authority.partition("@")
    return (login, at, hosts + slash + tail) if at else ("", "", rest)


def _split_hosts(authority: str) -> dict[str, str]:
    hosts, ports = [], []
    for part in authority.split(","):
        bracketed = re.fullmatch(r"\[([^\]]*)\](?::(.*))?", part)
        host, port = bracketed.groups("") if bracketed else _host_and_port(part)
        hosts.append(_decode(host, "the host"))
        ports.append(port)
    return {
        "host": ",".join(hosts) if any(hosts) else "",
        "port": ",".join(ports) if any(ports) else "",
    }


def _host_and_port(part: str) -> tuple[str, str]:
    host, _, port = part.partition(":")
    if ":" in port or "[" in host:
        raise ConfigError("an IPv6 address in a URL stands in brackets: [::1]:5432")
    return host, port


def _join_hosts(said: Mapping[str, str]) -> str:
    hosts, ports = said.get("host", "").split(","), said.get("port", "").split(",")
    pairs = itertools.zip_longest(hosts, ports, fillvalue="")
    return ",".join(_bracketed(host) + (f":{port}" if port else "") for host, port in pairs)


def _bracketed(host: str) -> str:
    is_ipv6 = ":" in host and not host.startswith("/")
    return f"[{host}]" if is_ipv6 else quote(host, safe="")


def _parse_query(query: str) -> dict[str, str]:
    said: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        name, value = _decode(name, "a parameter name"), _decode(value, "a parameter")
        if (name, value) == ("ssl", "true"):  # what JDBC's users write; libpq takes it too
            name, value = "sslmode", "require"
        if name not in _LIBPQ:
            raise ConfigError(_unknown_parameter(name))
        if name in said:
            raise ConfigError(f"the parameter {name} is given twice; write host=a,b for two hosts")
        said[name] = value
    return said


def _unknown_parameter(name: str) -> str:
    if not re.fullmatch(r"[a-z_]{1,40}", name):  # could be the tail of an unencoded password
        return "a parameter is unknown; a ? or & in a password or name is written %3F or %26"
    near = difflib.get_close_matches(name, _LIBPQ, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown connection parameter {name!r}{hint}"


def _check(said: Mapping[str, str]) -> None:
    ports = said.get("port", "").split(",")
    if not all(map(_is_port, filter(None, ports))):
        raise ConfigError("a port is a number from 1 to 65535; in a password : / @ are written %3A %2F %40")
    hosts = said.get("host", "").split(",")
    if len(ports) not in (1, len(hosts)):
        raise ConfigError(f"{len(hosts)} hosts but {len(ports)} ports: give one port, or one each")
    if said.get("sslmode", "require") not in tls.SSLMODES:
        raise ConfigError(f"sslmode is one of {', '.join(tls.SSLMODES)}")


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


def _decode(text: str, what: str) -> str:
    """Undo percent-encoding strictly, as libpq does; a plus stays a plus."""
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise ConfigError(f"a % in {what} has no two hexadecimal digits behind it; write %25")
    try:
        decoded = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{what} is not UTF-8 once its percent-encoding is undone") from None
    if "\0" in decoded:
        raise ConfigError(f"{what} contains %00")
    return decoded


def _require_sqlite() -> None:
    try:
        import sqlite3  # a Python may have been built without it
    except ImportError as error:
        raise ConfigError(
            "this Python was built without SQLite: use one that has it (its sqlite3 module), or use PostgreSQL"
        ) from error
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        oldest = ".".join(map(str, _OLDEST_SQLITE))
        raise ConfigError(
            f"this Python's SQLite is {sqlite3.sqlite_version}, and {oldest} or newer is needed: "
            "upgrade the system's libsqlite3, use a Python that was built with a newer one, or use PostgreSQL"
        )
