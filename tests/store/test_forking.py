"""A child that is forked while other threads are busy with SQLite can use it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atomic_celery.config import Settings
from atomic_celery.store.store import open_store
from tests.support.waiting import wait_until

FORKS, THREADS = 60, 3


@contextmanager
def _busy_threads(directory: Path) -> Iterator[None]:
    """Open and use databases all the time, on several threads."""
    over = threading.Event()

    def work(number: int) -> None:
        url = f"sqlite:///{directory / f'busy-{number}.db'}"
        while not over.is_set():
            store = open_store(url, Settings(), create=True)
            store.now_ms()
            store.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _use(url: str) -> None:
    code = 1
    try:
        store = open_store(url, Settings())
        store.now_ms()
        code = 0
    finally:
        os._exit(code)


def test_a_child_can_use_sqlite_whatever_its_parent_was_doing(tmp_path: Path, sqlite_url: str) -> None:
    open_store(sqlite_url, Settings(), create=True).close()
    with _busy_threads(tmp_path):
        for _ in range(FORKS):
            child = os.fork()
            if child == 0:
                _use(sqlite_url)
            try:
                _, status = wait_until(lambda child=child: _ended(child), 30.0, "the child hangs")  # type: ignore[misc]
            except BaseException:
                os.kill(child, 9)
                raise
            assert status == 0


def _ended(child: int) -> tuple[int, int] | None:
    pid, status = os.waitpid(child, os.WNOHANG)
    return (pid, status) if pid else None
