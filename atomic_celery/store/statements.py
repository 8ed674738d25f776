"""The protocol's statements: text from ``sql/<dialect>/<noun>.sql``, made ready for a driver.

A block begins with ``-- name: renew :many`` and ends where the next one begins. Its kind says what
it answers (``:one`` row or none, ``:many`` rows, ``:exec`` a count); the word ``hot`` behind it
asks to have it prepared once a session, where there are sessions. A block of several statements is
run in order in one transaction, and its rows are those of the last statement that has any.
Parameters are ``:named``; ``{now_ms}`` is the database's clock, or what a test says it is;
``atomic_`` stands for the prefix of the tables.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from importlib import resources

from atomic_celery import errors
from atomic_celery.store.urls import Dialect

_HEAD = re.compile(r"^-- name: (?P<name>\w+) :(?P<kind>one|many|exec)(?P<hot> hot)?$", re.M)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_COMMENT = re.compile(r"--.*$", re.M)
_PREFIX = re.compile(r"\batomic_")
_READS = re.compile(r"(SELECT|WITH|VALUES|PRAGMA)\b", re.I)
_CLOCK: dict[Dialect, str] = {
    "postgresql": "coalesce(:now_ms::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)",
    "sqlite": "coalesce(:now_ms, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))",
}


@dataclass(frozen=True, slots=True)
class Statement:
    """One block, in the words of its dialect's driver."""

    name: str
    parts: tuple[str, ...]
    """What to run, in order; PostgreSQL takes all of it at once."""
    writes: bool
    prepare: str | None = None
    """Run once a session before `execute`; None: not worth it, or not PostgreSQL."""
    execute: str = ""
    bounded: bool = True
    """Whether it must be answered in time: not so a migration, which takes as long as it takes."""

    @property
    def atomic(self) -> bool:
        """Whether it needs no transaction around it."""
        return len(self.parts) == 1


class Statements:
    """Every statement of one dialect, for tables with one prefix."""

    def __init__(self, dialect: Dialect, prefix: str) -> None:
        self._dialect, self._prefix = dialect, prefix
        self._nouns: dict[str, dict[str, Statement]] = {}

    def of(self, noun: str) -> dict[str, Statement]:
        """Return the statements of ``<noun>.sql`` by name."""
        if noun not in self._nouns:
            text = _read(self._dialect, noun)
            self._nouns[noun] = {
                name: self._translate(noun, name, body, hot=hot) for name, body, hot in split_blocks(text)
            }
        return self._nouns[noun]

    def script(self, name: str, text: str) -> Statement:
        """Return a whole file as one block: a migration."""
        return replace(self._translate("migration", name, text, hot=False), bounded=False)

    def _translate(self, noun: str, name: str, body: str, *, hot: bool) -> Statement:
        text = _PREFIX.sub(f"{self._prefix}_", _COMMENT.sub("", body))
        text = text.replace("{now_ms}", _CLOCK[self._dialect])
        parts = tuple(part for part in map(_squeeze, re.split(r";\s*$", text, flags=re.M)) if part)
        writes = len(parts) > 1 or not _is_query(parts[0])
        if self._dialect == "sqlite":
            return Statement(name, parts, writes)
        if not hot:
            return Statement(name, (_pyformat(";\n".join(parts)),), writes)
        return _prepared(f"{self._prefix}_{noun}_{name}", name, parts[0], writes)


def split_blocks(text: str) -> list[tuple[str, str, bool]]:
    """Split a file of statements into (name, body, hot), in order."""
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return [
        (head["name"], text[head.end() : end], head["hot"] is not None) for head, end in zip(heads, ends, strict=True)
    ]


@functools.cache
def _read(dialect: Dialect, noun: str) -> str:
    file = resources.files("atomic_celery.store") / "sql" / dialect / f"{noun}.sql"
    if not file.is_file():
        raise errors.StoreError(f"no statements for {noun} on {dialect}: incomplete installation")
    return file.read_text(encoding="utf-8")


def _squeeze(text: str) -> str:
    """Drop empty lines and the indentation: they would travel with every call."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def _is_query(text: str) -> bool:
    """Whether *text* only reads: a WITH may write in PostgreSQL, and a row lock is a write too."""
    return bool(_READS.match(text)) and not re.search(
        r"\b(INSERT INTO|UPDATE|DELETE FROM|FOR (NO KEY )?UPDATE|nextval)\b", text
    )


def _pyformat(text: str) -> str:
    return _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%"))


def _prepared(session_name: str, name: str, text: str, writes: bool) -> Statement:
    order = list(dict.fromkeys(_PARAMETER.findall(text)))
    numbered = _PARAMETER.sub(lambda found: f"${order.index(found[1]) + 1}", text)
    values = ", ".join(f"%({parameter})s" for parameter in order)
    return Statement(
        name,
        (_pyformat(text),),
        writes,
        prepare=f"PREPARE {session_name} AS {numbered}",
        execute=f"EXECUTE {session_name}" + (f" ({values})" if order else ""),
    )
