"""A database of PostgreSQL as the benchmarks see it: where it is and what it has cost so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psycopg2

from tests.support.postgres import Postgres
from tests.support.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Cost:
    """What a database has done since it began; subtract two for what happened between."""

    commits: int
    wal_bytes: int

    def __sub__(self, earlier: Cost) -> Cost:
        return Cost(self.commits - earlier.commits, self.wal_bytes - earlier.wal_bytes)


@dataclass(frozen=True)
class Database:
    """One database on a server that nobody else uses meanwhile."""

    server: Postgres
    location: str

    @property
    def name(self) -> str:
        """Its name on the server."""
        return urlsplit(self.location).path[1:]

    def url(self, scheme: str) -> str:
        """Where it is, as a URL of *scheme*."""
        return self.location.replace("postgresql", scheme, 1)

    def connect(self) -> Any:
        """Open a connection that commits each statement by itself."""
        connection = psycopg2.connect(self.location)
        connection.autocommit = True
        return connection

    def execute(self, statements: str) -> None:
        """Run *statements* in one transaction."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statements)

    def value(self, query: str) -> Any:
        """The first column of the first row."""
        return self.server.execute(query, database=self.name)[0][0]

    def cost(self) -> Cost:
        """What it has cost so far, once everybody has left it.

        A session adds its commits to the statistics at the latest when it ends.
        """
        wait_until(self._is_deserted, describe=f"somebody is still connected to {self.name}")
        [(commits, wal_bytes)] = self.server.execute(
            f"SELECT xact_commit, pg_current_wal_lsn() - '0/0' FROM pg_stat_database WHERE datname = '{self.name}'"
        )
        return Cost(int(commits), int(wal_bytes))

    def _is_deserted(self) -> bool:
        query = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{self.name}'"
        return self.server.execute(query) == [(0,)]


@contextmanager
def temporary(server: Postgres) -> Iterator[Database]:
    """A new empty database, dropped at the end."""
    location = server.create_database()
    try:
        yield Database(server, location)
    finally:
        server.drop_database(location)
