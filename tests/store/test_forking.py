"""A child that is forked while other threads are busy with SQLite can use it."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atomic_celery import errors
from atomic_celery.config import Settings
from atomic_celery.store import NewMessage, forking
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.store import Store, open_store
from tests.support.waiting import wait_until

FORKS, THREADS = 60, 3

Work = Callable[[Path, str, int], None]


def _open_and_close(directory: Path, _url: str, number: int) -> None:
    store = open_store(f"sqlite:///{directory / f'busy-{number}.db'}", Settings(), create=True)
    store.now_ms()
    store.close()


def _write(_directory: Path, url: str, number: int) -> None:
    store = open_store(url, Settings())
    with store.transaction():
        store.queues.declare(QueueSpec(name=f"{number} {threading.get_ident()}"))
        store.queues.delete(f"{number} {threading.get_ident()}")
    store.close()


@contextmanager
def _busy_threads(work: Work, directory: Path, url: str) -> Iterator[None]:
    """Use SQLite all the time, on several threads."""
    over = threading.Event()

    def go_on(number: int) -> None:
        while not over.wait(0.005):  # or nobody else would ever get the write lock
            work(directory, url, number)

    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _write_in_child(store: Store) -> None:
    code = 1
    try:
        store.queues.declare(QueueSpec(name=f"child {os.getpid()}"))
        code = 0
    finally:
        os._exit(code)


@pytest.mark.parametrize("work", [_open_and_close, _write], ids=["opening", "writing"])
def test_a_child_can_write_whatever_its_parent_was_doing(tmp_path: Path, sqlite_url: str, work: Work) -> None:
    store = open_store(sqlite_url, Settings(), create=True)
    store.now_ms()
    with _busy_threads(work, tmp_path, sqlite_url):
        for _ in range(FORKS):
            child = os.fork()
            if child == 0:
                _write_in_child(store)
            try:
                _, status = wait_until(lambda child=child: _ended(child), 60.0, "the child hangs")  # type: ignore[misc]
            except BaseException:
                os.kill(child, 9)
                raise
            assert status == 0
    store.close()


def _fork(then: Callable[[], None] = lambda: None) -> None:
    """Fork, and do *then* in the parent. What the child inherits of all that ran in this process is not asked here."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    then()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _begin_forking() -> tuple[threading.Thread, threading.Event]:
    """Fork on another thread; return that, and what is set once it has forked."""
    forked = threading.Event()
    thread = threading.Thread(target=_fork, args=(forked.set,))
    thread.start()
    wait_until(lambda: forking._gate._closed or forked.is_set(), 60, "no fork began")
    return thread, forked


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[Store]:
    store = open_store(sqlite_url, Settings(), create=True)
    yield store
    store.close()


def test_a_fork_waits_for_a_transaction_which_may_go_on(sqlite: Store, tmp_path: Path) -> None:
    other = open_store(f"sqlite:///{tmp_path / 'other.db'}", Settings(), create=True)
    with sqlite.transaction():
        sqlite.now_ms()
        thread, forked = _begin_forking()
        sqlite.queues.declare(QueueSpec(name="q"))
        other.now_ms()  # another database is used within: the fork that waits for us must not keep us
        assert not forked.is_set()
    thread.join(60)
    assert forked.is_set()
    other.close()


def test_a_fork_waits_for_a_statement_that_waits_for_a_lock(sqlite: Store, sqlite_url: str) -> None:
    blocker = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    writer = threading.Thread(target=sqlite.revocations.add, args=(["t"], 60_000))  # one statement
    writer.start()
    wait_until(lambda: writer.ident in forking._gate._depths, 60, "nobody writes")
    thread, forked = _begin_forking()
    assert not forked.is_set()
    blocker.execute("ROLLBACK")
    blocker.close()
    thread.join(60)
    writer.join(60)
    assert forked.is_set()
    assert sqlite.revocations.contains(["t"]) == {"t"}


def test_nothing_begins_while_a_fork_waits(sqlite: Store, sqlite_url: str) -> None:
    doorbell = sqlite.doorbell("somebody")
    calls: list[Callable[[], object]] = [
        sqlite.now_ms,
        lambda: open_store(sqlite_url, Settings()).now_ms(),
        lambda: doorbell.wait(0),
        sqlite.close,
    ]
    with sqlite.transaction():
        sqlite.now_ms()
        fork, _ = _begin_forking()
        done: list[int] = []
        threads = [
            threading.Thread(target=lambda call=call, number=number: (call(), done.append(number)))  # type: ignore[misc]
            for number, call in enumerate(calls)
        ]
        for thread in threads:
            thread.start()
            thread.join(0.1)
        assert not done
    for thread in [fork, *threads]:
        thread.join(60)
    assert sorted(done) == [0, 1, 2, 3]
    doorbell.close()


def test_whoever_is_in_a_transaction_may_fork(sqlite: Store) -> None:
    with sqlite.transaction():
        sqlite.queues.declare(QueueSpec(name="q"))
        _fork()
        sqlite.queues.declare(QueueSpec(name="r"))
    assert sqlite.queues.get("r") is not None


def test_an_error_leaves_nobody_inside(sqlite: Store, tmp_path: Path) -> None:
    with pytest.raises(errors.StoreError):
        open_store(f"sqlite:///{tmp_path}/nowhere/x.db", Settings()).now_ms()
    with pytest.raises(errors.QueueNotFound), sqlite.transaction():
        sqlite.messages.publish([NewMessage(queue_id=0, payload="{}")])
    with pytest.raises(errors.StoreError), sqlite.deadline(-1.0):
        sqlite.now_ms()
    assert not forking._gate._depths


def test_a_fork_does_not_wait_for_ever(sqlite: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "FORK_ANYWAY_AFTER_S", 0.05)
    with sqlite.transaction():
        sqlite.now_ms()
        thread, forked = _begin_forking()
        thread.join(60)
        assert forked.is_set()
    assert sqlite.now_ms()


def test_postgresql_keeps_nobody_from_forking(postgres_store: Store) -> None:
    with postgres_store.transaction():
        postgres_store.now_ms()
        assert not forking._gate._depths


def _ended(child: int) -> tuple[int, int] | None:
    pid, status = os.waitpid(child, os.WNOHANG)
    return (pid, status) if pid else None
