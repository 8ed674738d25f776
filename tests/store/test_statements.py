"""The statements are what the files say, and the databases understand every one of them."""

from __future__ import annotations

import sqlite3
from importlib import resources

import psycopg2
import pytest

from atomic_celery.store.statements import Statement, Statements, split_blocks
from atomic_celery.store.store import Store
from atomic_celery.store.urls import Dialect

FILES = resources.files("atomic_celery.store") / "sql"


DJANGO_S = {"django_results"}
"""Nouns of tables that Django makes."""


def nouns(dialect: Dialect) -> list[str]:
    return sorted(file.name.removesuffix(".sql") for file in (FILES / dialect).iterdir() if file.name.endswith(".sql"))


def translated(dialect: Dialect, text: str, prefix: str = "atomic") -> Statement:
    return Statements(dialect, prefix).script("name", text)


def test_parameters_become_the_drivers() -> None:
    text = "SELECT :a::bigint, :b, '100%', x::text FROM t WHERE y = :a"
    assert translated("postgresql", text).parts == (
        "SELECT %(a)s::bigint, %(b)s, '100%%', x::text FROM t WHERE y = %(a)s",
    )
    assert translated("sqlite", "SELECT :a, '100%'").parts == ("SELECT :a, '100%'",)


def test_the_prefix_replaces_ours_and_nothing_else() -> None:
    text = "SELECT nextval('atomic_message_id_seq') FROM atomic_message AS not_atomic_x"
    assert translated("postgresql", text, "fleet").parts == (
        "SELECT nextval('fleet_message_id_seq') FROM fleet_message AS not_atomic_x",
    )


def test_comments_stay_at_home_and_statements_are_told_apart() -> None:
    text = "-- why; because\nDELETE FROM a;\nSELECT 1; -- one\n\n  SELECT 2\n"
    assert translated("sqlite", text).parts == ("DELETE FROM a", "SELECT 1", "SELECT 2")
    assert translated("postgresql", text).parts == ("DELETE FROM a;\nSELECT 1;\nSELECT 2",)


def test_what_only_reads_is_known() -> None:
    assert not translated("postgresql", "SELECT 1").writes
    assert not translated("sqlite", "WITH a AS (SELECT 1) SELECT 1 FROM a").writes
    assert translated("postgresql", "WITH a AS (DELETE FROM t RETURNING b) SELECT b FROM a").writes
    assert translated("postgresql", "SELECT 1 FROM t FOR UPDATE").writes
    assert translated("sqlite", "INSERT INTO t VALUES (1)").writes


def test_a_hot_statement_is_prepared_with_its_parameters_in_order_of_appearance() -> None:
    publish = Statements("postgresql", "fleet").of("messages")["publish"]
    assert publish.prepare
    assert publish.prepare.startswith("PREPARE fleet_messages_publish AS WITH receipt AS")
    assert ":" not in publish.prepare.replace("::", "")
    assert publish.execute.startswith("EXECUTE fleet_messages_publish (%(publisher)s, %(fence)s,")


@pytest.mark.parametrize("noun", nouns("postgresql"))
def test_every_block_makes_its_promise_first(noun: str) -> None:
    for dialect in ("postgresql", "sqlite"):
        file = FILES / dialect / f"{noun}.sql"
        blocks = split_blocks(file.read_text(encoding="utf-8")) if file.is_file() else []
        for name, body, _ in blocks:
            assert body.lstrip("\n").startswith("-- "), f"{dialect} {noun}.{name}"


def test_both_databases_know_the_same_words() -> None:
    for noun in {"messages", "schema"}:
        assert Statements("postgresql", "a").of(noun).keys() == Statements("sqlite", "a").of(noun).keys()


def test_postgresql_understands_every_statement(postgres_store: Store, postgres_url: str) -> None:
    connection = psycopg2.connect(postgres_url)
    with connection, connection.cursor() as cursor:
        for noun in set(nouns("postgresql")) - DJANGO_S:
            for statement in Statements("postgresql", "atomic").of(noun).values():
                if statement.prepare:
                    cursor.execute(statement.prepare)
                    continue
                for text in statement.parts[0].split(";\n"):
                    if text.startswith(("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")):
                        cursor.execute(f"EXPLAIN {text}", _Nothing())
    connection.close()


def test_sqlite_understands_every_statement(sqlite_store: Store) -> None:
    connection = sqlite3.connect(sqlite_store.url.path or "", isolation_level=None)
    for part in Statements("sqlite", "atomic").of("session")["open"].parts:
        connection.execute(part)
    for noun in set(nouns("sqlite")) - {"session"} - DJANGO_S:
        for statement in Statements("sqlite", "atomic").of(noun).values():
            for part in statement.parts:
                connection.execute(f"EXPLAIN {part}", _Nothing())
    connection.close()


class _Nothing(dict[str, None]):
    """Every parameter is NULL."""

    def __missing__(self, _: str) -> None:
        return None
