"""`get()` is woken, by whatever the database has for it, in every kind of process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery
from celery.exceptions import TimeoutError as TooLate
from celery.result import AsyncResult, GroupResult

from atomic_celery.results import listener
from atomic_celery.store import Store
from atomic_celery.store.results import Outcome
from tests.support.postgres import Postgres
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

NEVER = (3600.0,)

Record = Callable[..., None]


def _app(url: str, **conf: Any) -> Celery:
    app = Celery("waiting", broker=f"atomic+{url}", backend="atomic", set_as_current=False)
    app.conf.update(conf)
    app.backend.store.schema.migrate()
    return app


@pytest.fixture
def app(database_url: str) -> Iterator[Celery]:
    """An app on each kind of database."""
    with closing(_app(database_url)) as app:
        yield app


@pytest.fixture
def record(app: Celery) -> Record:
    """Record what a task came to."""
    return _recorder(app)


def _recorder(app: Celery) -> Record:
    def record(task_id: str, result: Any = None, state: str = "SUCCESS") -> None:
        app.backend.store_result(task_id, result, state)

    return record


def _awaited(app: Celery) -> int:
    """How many results this process waits for, as far as the database could know."""
    listening = listener.of(app.backend.store)
    if app.backend.store.dialect == "sqlite":
        return len(listening._awaited) if listening._doorbell is not None and listening._doorbell.listening else 0
    bell = listening._doorbell
    return len(_rows(app.backend.store, "atomic_watcher")) if bell is not None and bell.listening else 0


def _rows(store: Store, table: str) -> list[Any]:
    database = store._database
    return list(database.run(database.statements.script("rows", f"SELECT * FROM {table}")).rows)


class Waiter:
    """A thread that waits for a result."""

    def __init__(self, result: Any, **options: Any) -> None:
        self.answer: Any = None
        self._result, self._options = result, {"timeout": 60, **options}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.answer = self._result.get(**self._options)
        except BaseException as error:
            self.answer = error

    def join(self) -> Any:
        """Return what it got."""
        self._thread.join(90)
        assert not self._thread.is_alive()
        return self.answer


def test_what_is_there_is_returned_at_once(app: Celery, record: Record) -> None:
    record("t", 5)
    assert AsyncResult("t", app=app).get(timeout=60) == 5


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_what_does_not_come_in_time_is_not_waited_for(app: Celery, timeout: float) -> None:
    with pytest.raises(TooLate):
        AsyncResult("t", app=app).get(timeout=timeout)


def test_who_waits_is_woken(app: Celery, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "LADDER_S", NEVER)
    waiter = Waiter(AsyncResult("t", app=app))
    wait_until(lambda: _awaited(app) == 1)
    record("t", "woken")
    assert waiter.join() == "woken"


def test_who_is_not_woken_looks_by_itself(app: Celery, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atomic_celery.store.results.Results.watch", lambda *_: None)
    waiter = Waiter(AsyncResult("t", app=app))
    wait_until(lambda: listener.of(app.backend.store)._awaited)
    record("t", "seen")
    assert waiter.join() == "seen"


def test_where_nobody_can_be_woken_everybody_looks(postgres_url: str) -> None:
    with closing(_app(postgres_url, atomic_notify=False)) as app:
        waiter = Waiter(AsyncResult("t", app=app))
        wait_until(lambda: listener.of(app.backend.store)._awaited)
        _recorder(app)("t", "seen")
        assert waiter.join() == "seen"
        assert _rows(app.backend.store, "atomic_watcher") == []


def test_a_failure_is_raised(app: Celery, record: Record) -> None:
    waiter = Waiter(AsyncResult("t", app=app))
    record("t", KeyError("why"), "FAILURE")
    assert repr(waiter.join()) == "KeyError('why')"


def test_whoever_waits_for_the_same_result_gets_it(app: Celery, record: Record) -> None:
    waiters = [Waiter(AsyncResult("t", app=app)) for _ in range(10)]
    wait_until(lambda: _awaited(app) == 1)
    record("t", 1)
    assert [waiter.join() for waiter in waiters] == [1] * 10


def test_threads_wait_each_for_their_own(app: Celery, record: Record) -> None:
    waiters = [Waiter(AsyncResult(f"t{number}", app=app)) for number in range(20)]
    wait_until(lambda: _awaited(app) == 20)
    for number in reversed(range(20)):
        record(f"t{number}", number)
    assert [waiter.join() for waiter in waiters] == list(range(20))


def test_one_result_object_may_be_waited_for_by_threads(app: Celery, record: Record) -> None:
    result: AsyncResult[Any] = AsyncResult("t", app=app)
    waiters = [Waiter(result) for _ in range(5)]
    wait_until(lambda: _awaited(app) == 1)
    record("t", 1)
    assert [waiter.join() for waiter in waiters] == [1] * 5


def test_thousands_are_waited_for_together(app: Celery) -> None:
    count = 3000
    store = app.backend.store
    waiter = Waiter(GroupResult("g", [AsyncResult(f"t{number}", app=app) for number in range(count)], app=app))
    wait_until(lambda: _awaited(app) == count)
    for start in range(0, count, 500):
        store.results.record(
            Outcome(f"t{number}", "SUCCESS", f'{{"status": "SUCCESS", "result": {number}, "task_id": "t{number}"}}')
            for number in range(start, start + 500)
        )
    assert waiter.join() == list(range(count))
    if store.dialect == "postgresql":
        wait_until(lambda: _rows(store, "atomic_watcher") == [])


def test_many_threads_share_one_connection_to_listen(
    postgres: Postgres, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(_app(postgres_url)) as app:
        waiters = [Waiter(AsyncResult(f"t{number}", app=app)) for number in range(30)]
        wait_until(lambda: _awaited(app) == 30)
        [(count,)] = postgres.execute(
            f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{urlsplit(postgres_url).path[1:]}'"
        )
        assert count <= 4  # one that listens, one that looks, one of this test's; none a thread
        for number in range(30):
            _recorder(app)(f"t{number}", number)
        assert [waiter.join() for waiter in waiters] == list(range(30))


def test_who_gives_up_is_not_waited_for_any_more(app: Celery, record: Record) -> None:
    with pytest.raises(TooLate):
        AsyncResult("never", app=app).get(timeout=0.05)
    waiter = Waiter(AsyncResult("t", app=app))
    wait_until(lambda: _awaited(app) == 1)
    record("t", 1)
    assert waiter.join() == 1
    assert not listener.of(app.backend.store)._awaited


def test_nobody_listens_for_what_nobody_waits_for(app: Celery) -> None:
    GroupResult("g", [AsyncResult(f"t{number}", app=app) for number in range(10)], app=app)
    assert listener.of(app.backend.store)._thread is None
    assert not any(app.backend._pending_results)


def test_the_thread_ends_when_nobody_waits_and_comes_back(
    app: Celery, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "IDLE_S", 0.01)
    listening = listener.of(app.backend.store)
    for number in range(3):
        waiter = Waiter(AsyncResult(f"t{number}", app=app))
        record(f"t{number}", number)
        assert waiter.join() == number
        wait_until(lambda: listening._thread is None)


def test_who_does_not_wait_any_more_says_nothing_of_a_database_that_goes(
    postgres: Postgres, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(_app(postgres_url)) as app:
        waiter = Waiter(AsyncResult("t", app=app))
        wait_until(lambda: _awaited(app) == 1)
        listening = listener.of(app.backend.store)
        _recorder(app)("t", 1)
        assert waiter.join() == 1
        wait_until(lambda: not listening._watched)
        postgres.drop_database(postgres_url)
        wait_until(lambda: listening._thread is None)
        assert caplog.messages == []


def test_steps_are_told(app: Celery, record: Record) -> None:
    seen: list[Any] = []
    waiter = Waiter(AsyncResult("t", app=app), on_message=seen.append)
    wait_until(lambda: _awaited(app) == 1)
    for step in range(3):
        record("t", {"step": step}, "PROGRESS")
        wait_until(lambda step=step: seen and seen[-1]["result"] == {"step": step})  # type: ignore[misc]
    record("t", "done")
    assert waiter.join() == "done"
    assert [meta["status"] for meta in seen] == ["PROGRESS"] * 3 + ["SUCCESS"]


def test_a_callback_is_called(app: Celery, record: Record) -> None:
    result: AsyncResult[Any] = AsyncResult("t", app=app)
    seen: list[Any] = []
    result.then(lambda ended: seen.append(ended.result))
    record("t", 5)
    assert result.get(timeout=60) == 5
    assert seen == [5]


def test_a_forked_child_waits_for_itself(app: Celery, record: Record) -> None:
    waiter = Waiter(AsyncResult("parents", app=app))
    wait_until(lambda: _awaited(app) == 1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if AsyncResult("childs", app=app).get(timeout=60) == 2 else 2
        finally:
            os._exit(code)
    wait_until(lambda: app.backend.store.dialect == "sqlite" or len(_rows(app.backend.store, "atomic_watcher")) == 2)
    record("parents", 1)
    record("childs", 2)
    assert waiter.join() == 1
    _, status = os.waitpid(child, 0)
    assert status == 0


def test_a_database_that_goes_and_comes_back_is_waited_for(postgres_url: str, proxy: Proxy) -> None:
    with (
        closing(_app(postgres_url)) as direct,
        closing(_app(proxy.url(postgres_url), atomic_statement_timeout=5, atomic_connect_timeout=5)) as app,
    ):
        waiter = Waiter(AsyncResult("t", app=app))
        wait_until(lambda: _awaited(app) == 1)
        proxy.drop()
        _recorder(direct)("t", "meanwhile")
        proxy.restore()
        assert waiter.join() == "meanwhile"


def test_a_database_without_tables_is_said_to_whoever_waits(postgres_url: str) -> None:
    with closing(Celery("bare", broker=f"atomic+{postgres_url}", backend="atomic", set_as_current=False)) as app:
        answer = Waiter(AsyncResult("t", app=app)).join()
        assert "atomic migrate" in str(answer)
