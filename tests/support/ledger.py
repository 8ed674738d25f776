"""A table beside the product's, to which tasks add rows: what really happened, as opposed to what was reported."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, select
from sqlalchemy.pool import NullPool

_TABLE = Table(
    "test_ledger",
    MetaData(),
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("what", String, nullable=False),
)


def patient_engine(url: str) -> Engine:
    """Return an engine that keeps no connection, and on SQLite waits for a writer that stands still."""
    patience = {"timeout": 60} if url.startswith("sqlite") else {}
    return create_engine(url, poolclass=NullPool, connect_args=patience)


class Ledger:
    """Rows in the order they were added."""

    def __init__(self, url: str) -> None:
        self._engine = patient_engine(url)

    def create(self) -> Ledger:
        """Make the table."""
        _TABLE.metadata.create_all(self._engine)
        return self

    def add(self, what: str) -> None:
        """Add a row; committed on return."""
        with self._engine.begin() as connection:
            connection.execute(_TABLE.insert().values(what=what))

    def rows(self) -> list[str]:
        """Return all rows."""
        with self._engine.begin() as connection:
            return list(connection.execute(select(_TABLE.c.what).order_by(_TABLE.c.id)).scalars())

    def counts(self) -> Counter[str]:
        """Return how often each row is there."""
        return Counter(self.rows())
