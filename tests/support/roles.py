"""A database role of a fleet's own, whose password changes while workers use it."""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit

from tests.support.postgres import Postgres


class Role:
    """May do everything in one database, with a password that the test sets."""

    def __init__(self, postgres: Postgres, database_url: str) -> None:
        self._postgres, self.name = postgres, f"role_{secrets.token_hex(4)}"
        self._parts = urlsplit(database_url)
        postgres.execute(f"CREATE ROLE {self.name} LOGIN SUPERUSER")

    @property
    def url(self) -> str:
        """The database, as this role opens it; without a password."""
        return f"postgresql://{self.name}@{self._parts.hostname}:{self._parts.port}{self._parts.path}"

    def change_password(self, password: str) -> None:
        """Make the server want *password*, and cut off every session that began with another."""
        self.rotate_password(password)
        self.cut_off()

    def rotate_password(self, password: str) -> None:
        """Make the server want *password* of whoever comes from now on."""
        self._postgres.execute(f"ALTER ROLE {self.name} PASSWORD '{password}'")

    def cut_off(self) -> None:
        """End its sessions."""
        self._postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{self.name}'")

    def sessions(self) -> int:
        """Count its sessions."""
        [(count,)] = self._postgres.execute(f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{self.name}'")
        return int(count)

    def drop(self) -> None:
        """Remove it."""
        self.cut_off()
        self._postgres.execute(f"DROP ROLE {self.name}")
