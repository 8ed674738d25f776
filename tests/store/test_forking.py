"""No thread is inside SQLite while the process forks, whatever it calls."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atomic_celery.store import forking


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[forking.Connection]:
    opened = sqlite3.connect(tmp_path / "x.db", factory=forking.Connection, check_same_thread=False)
    opened.execute("CREATE TABLE t (x)")
    opened.execute("INSERT INTO t VALUES (1), (2)")
    yield opened
    opened.close()


CALLS: dict[str, Callable[[forking.Connection], object]] = {
    "connection.execute": lambda connection: connection.execute("SELECT x FROM t"),
    "cursor.execute": lambda connection: connection.cursor().execute("SELECT x FROM t"),
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "connect": lambda connection: forking.Connection(":memory:"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_a_call_waits_until_the_fork_is_over(
    connection: forking.Connection, call: Callable[[forking.Connection], object]
) -> None:
    done = threading.Event()
    thread = threading.Thread(target=lambda: (call(connection), done.set()))
    forking._gate.close()
    try:
        thread.start()
        assert not done.wait(0.2), "it went on inside SQLite"
    finally:
        forking._gate.open()
    assert done.wait(30)
    thread.join()


@pytest.mark.parametrize("fetch", ["fetchone", "fetchall"])
def test_fetching_waits_too(connection: forking.Connection, fetch: str) -> None:
    cursor, rows = connection.execute("SELECT x FROM t ORDER BY x"), []
    done = threading.Event()
    thread = threading.Thread(target=lambda: (rows.append(getattr(cursor, fetch)()), done.set()))
    forking._gate.close()
    try:
        thread.start()
        assert not done.wait(0.2), "it went on inside SQLite"
    finally:
        forking._gate.open()
    assert done.wait(30)
    thread.join()
    assert rows == [(1,) if fetch == "fetchone" else [(1,), (2,)]]
