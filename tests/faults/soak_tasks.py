"""What the workers of the soak run: a row for each task, in the messages' own database, with the lease's proof."""

from __future__ import annotations

import os
import time
import uuid

import psycopg2

from tests.support.application import app

_LOCK = "SELECT 1 FROM atomic_claim WHERE message_id = %(id)s AND fence = %(fence)s FOR KEY SHARE"
_WRITE = """
INSERT INTO soak_row VALUES (%(number)s, %(id)s, ARRAY[%(run)s])
    ON CONFLICT (number) DO UPDATE SET runs = soak_row.runs || excluded.runs
 WHERE NOT soak_row.runs @> excluded.runs
"""
_CHECK = """
SELECT 1 FROM atomic_claim
 WHERE message_id = %(id)s AND fence = %(fence)s AND lease_until_ms > extract(epoch FROM clock_timestamp()) * 1000
"""


class Rows:
    """A child's connection to the database, past whatever is between its host and that."""

    def __init__(self) -> None:
        self._connection: psycopg2.extensions.connection | None = None

    def add(self, row: dict[str, object]) -> bool:
        """Add a row, or a run to it, unless the lease is over; False: whether that was done is unknown, ask again.

        Locked first, so that nobody can take the message over before this is committed; the clock is read last.
        """
        try:
            with self._open() as connection, connection.cursor() as cursor:
                cursor.execute(_LOCK, row)
                cursor.execute(_WRITE, row)
                cursor.execute(_CHECK, row)
                if cursor.rowcount != 1:
                    connection.rollback()
        except psycopg2.Error:
            self._connection = None
            return False
        return True

    def _open(self) -> psycopg2.extensions.connection:
        if self._connection is None:
            url = os.environ["TEST_LEDGER"].replace("+psycopg2", "")
            self._connection = psycopg2.connect(url, connect_timeout=2, options="-c statement_timeout=2s")
        return self._connection


_rows = Rows()


@app.task(bind=True)
def add_row(self, number: int, work_s: float) -> int:
    """Work for a while and add this run to the task's row, however long that takes; return the fence."""
    claim = self.request.properties["atomic"]
    row = {"number": number, **claim, "run": f"{claim['fence']} {uuid.uuid4().hex}"}
    time.sleep(work_s)
    while not _rows.add(row):
        time.sleep(0.1)
    return int(claim["fence"])
