"""What the database saw: every publication, claim and end of a message, written down by triggers.

Nothing of the product takes part in this, so it is no word of a worker's against another's. A row says what happened
and when, by the database's clock:

| what | of | with |
|---|---|---|
| `published` | a message | its task id |
| `granted` | a claim | fence, holder, and until when the lease lasts at first |
| `let go` | a claim | the same, and until when the lease had been renewed |
| `ended` | a message | its task id: it was completed, and is gone |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import text

from tests.support.ledger import patient_engine

_COLUMNS = "what, message_id, task_id, fence, holder, lease_until_ms, at_ms"
_CLAIM = "message_id, NULL, {row}.fence, {row}.holder, {row}.lease_until_ms"
_MESSAGE = "id, {row}.task_id, NULL, NULL, NULL"
_SEEN = [
    ("published", "INSERT", "atomic_message", _MESSAGE),
    ("granted", "INSERT", "atomic_claim", _CLAIM),
    ("let go", "DELETE", "atomic_claim", _CLAIM),
    ("ended", "DELETE", "atomic_message", _MESSAGE),
]
_NOW_MS = {
    "postgresql": "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}
_ID = {"postgresql": "bigserial PRIMARY KEY", "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT"}


@dataclass(frozen=True)
class Sight:
    """One row of the above."""

    what: str
    message_id: int
    task_id: str | None
    fence: int | None
    holder: str | None
    lease_until_ms: int | None
    at_ms: int


class Witness:
    """Sees what happens from now on to the messages of the database at *url*, which has its tables already."""

    def __init__(self, url: str) -> None:
        self._engine = patient_engine(url.replace("postgresql:", "postgresql+psycopg2:"))
        dialect = self._engine.dialect.name
        with self._engine.begin() as connection:
            connection.execute(
                text(
                    f"CREATE TABLE test_witness (id {_ID[dialect]}, what text, message_id bigint, task_id text, "
                    "fence bigint, holder text, lease_until_ms bigint, at_ms bigint)"
                )
            )
            for number, (what, verb, table, values) in enumerate(_SEEN):
                row = "NEW" if verb == "INSERT" else "OLD"
                note = (
                    f"INSERT INTO test_witness ({_COLUMNS}) "
                    f"VALUES ('{what}', {row}.{values.format(row=row)}, {_NOW_MS[dialect]});"
                )
                for statement in _trigger(dialect, f"test_witness_{number}", verb, table, note):
                    connection.execute(text(statement.replace(":", r"\:")))

    def sights(self) -> list[Sight]:
        """Return all that was seen, in order."""
        with self._engine.begin() as connection:
            rows = connection.execute(text(f"SELECT {_COLUMNS} FROM test_witness ORDER BY id"))
            return [Sight(*row) for row in rows]

    def history(self, task_id: str) -> list[Sight]:
        """Return the life of the message of a task."""
        sights = self.sights()
        [message_id] = {sight.message_id for sight in sights if sight.task_id == task_id}
        return [sight for sight in sights if sight.message_id == message_id]

    def of(self, task_id: str, what: str) -> list[Sight]:
        """Return the sights of one kind in the life of the message of a task."""
        return [sight for sight in self.history(task_id) if sight.what == what]

    def completed_under(self) -> dict[str, int]:
        """Return for each task that ended under which fence that was."""
        ended: dict[str, int] = {}
        for _, history in _histories(self.sights()):
            fences = [sight.fence for sight in history if sight.what == "granted"]
            ended |= {sight.task_id: fences[-1] for sight in history if sight.what == "ended" and fences}
        return ended

    def problems(self) -> list[str]:
        """Return what breaks I2 (fences grow one by one), I3 (one holder at a time) or I4 (an end is the end)."""
        return [problem for number, history in _histories(self.sights()) for problem in _problems(number, history)]


def _histories(sights: Iterable[Sight]) -> Iterator[tuple[int, list[Sight]]]:
    """Yield each message that anybody ever claimed, and its life."""
    ordered = sorted(sights, key=lambda sight: sight.message_id)
    for message_id, history in groupby(ordered, key=lambda sight: sight.message_id):
        life = list(history)
        if any(sight.what == "granted" for sight in life):
            yield message_id, life


def _problems(message_id: int, history: list[Sight]) -> Iterator[str]:
    granted, held, ended = 0, None, False
    for sight in history:
        if sight.what == "granted":
            if ended:
                yield f"message {message_id}: granted under fence {sight.fence} after its end"
            if held is not None:
                yield f"message {message_id}: granted under fence {sight.fence} while {held} was held"
            if sight.fence != granted + 1:
                yield f"message {message_id}: fence {sight.fence} follows {granted}"
            granted = held = sight.fence or 0
        elif sight.what == "let go":
            if sight.fence != held:
                yield f"message {message_id}: fence {sight.fence} was let go while {held} was held"
            held = None
        elif sight.what == "ended":
            if ended:
                yield f"message {message_id}: ended twice"
            ended = True


def _trigger(dialect: str, name: str, verb: str, table: str, note: str) -> Iterator[str]:
    if dialect == "sqlite":
        yield f"CREATE TRIGGER {name} AFTER {verb} ON {table} BEGIN {note} END"
        return
    yield f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {note} RETURN NULL; END $$"
    yield f"CREATE TRIGGER {name} AFTER {verb} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()"
