"""How sure a connection has to be of the server it talks to: `sslmode`, where the URL does not say.

What leaves this machine is encrypted at least. A cloud's token is worth something to whoever gets it, so where that
cloud signs for its servers, the server has to prove who it is first.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping

from atomic_celery.errors import ConfigError

SSLMODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
"""libpq's, weakest first."""

# Whoever these clouds sign for has a certificate on the name of its host. Cloud SQL by default has not.
_ROOTS = {
    "aws": "https://truststore.pki.rds.amazonaws.com/global/global-bundle.pem",
    "azure": "its page on TLS (DigiCert Global Root G2 and Microsoft RSA Root CA 2017)",
}
_LIBPQ_ROOTS = "~/.postgresql/root.crt"


def ask(said: Mapping[str, str], environ: Mapping[str, str], auth: str | None) -> dict[str, str]:
    """Return the ``sslmode`` to add to what a URL says: none if that has its own word, or no byte leaves this machine.

    Args:
        said: libpq's parameters in the URL.
        environ: libpq's variables.
        auth: The cloud whose token will be the password.

    Raises:
        ConfigError: A service file decides the host, or a certificate authority is needed and not named.
    """
    if "sslmode" in said:
        return {}
    hosts = said.get("hostaddr") or said.get("host")
    if not hosts and ("service" in said or "PGSERVICE" in environ):
        raise ConfigError("a service file decides the host, so the URL must say ?sslmode=… itself")
    hosts = hosts or environ.get("PGHOSTADDR") or environ.get("PGHOST", "")
    if all(map(_stays_on_this_machine, hosts.split(","))):
        return {}
    least = "verify-full" if auth in _ROOTS else "require"
    if auth in _ROOTS and not _knows_a_root(said, environ):
        raise ConfigError(
            f"auth {auth} sends a token, so the server must prove who it is: add ?sslrootcert=/path/to/the/file with "
            f"the certificates from {_ROOTS[auth]}, or say another sslmode yourself"
        )
    return {"sslmode": max(least, environ.get("PGSSLMODE", ""), key=_strength)}


def _knows_a_root(said: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    named = said.get("sslrootcert") or environ.get("PGSSLROOTCERT")
    return bool(named) or os.path.exists(os.path.expanduser(_LIBPQ_ROOTS))


def _strength(sslmode: str) -> int:
    return SSLMODES.index(sslmode) if sslmode in SSLMODES else -1


def _stays_on_this_machine(host: str) -> bool:
    """Whether *host* is a loopback address or a socket (a path, an @name, libpq's default)."""
    if not host or host[0] in "/@" or host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
