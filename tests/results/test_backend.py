"""The whole contract of a result backend, on each database, without a worker."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, states
from celery.app.task import Context
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult, GroupResult

from atomic_celery import errors
from atomic_celery.results import Backend, encoding
from atomic_celery.store.store import Store, open_store

NewApp = Callable[..., Celery]


@pytest.fixture
def new_app(database_url: str) -> Iterator[NewApp]:
    """Make apps on a migrated database, of each kind in turn."""
    with ExitStack() as opened:

        def make(backend: str = "atomic", **conf: Any) -> Celery:
            app = Celery("contract", broker=f"atomic+{database_url}", backend=backend, set_as_current=False)
            app.conf.update(conf)
            opened.enter_context(closing(app))
            app.backend.store.schema.migrate()
            return app

        yield make


@pytest.fixture
def app(new_app: NewApp) -> Celery:
    return new_app()


def _backend(app: Celery) -> Any:
    assert isinstance(app.backend, Backend)
    return app.backend


def _count(store: Store, table: str) -> int:
    database = store._database
    return int(database.run(database.statements.script("count", f"SELECT count(*) FROM {table}")).rows[0][0])


# Where it is


def test_it_is_known_by_its_url(new_app: NewApp, database_url: str) -> None:
    backend = _backend(new_app(f"atomic+{database_url}"))
    assert backend.is_at_home
    assert backend.store is _backend(new_app()).store


def test_it_shares_the_connections_of_the_broker(app: Celery) -> None:
    with app.connection_for_write() as connection:
        assert connection.channel().connection.broker.store is _backend(app).store


def test_another_database_is_not_at_home(app: Celery, new_app: NewApp, tmp_path: Path) -> None:
    other = _backend(new_app(f"atomic+sqlite:///{tmp_path}/other.db"))
    assert not other.is_at_home
    assert other.store is not _backend(app).store
    other.store_result("t", 1, states.SUCCESS)
    assert other.get_result("t") == 1
    assert _backend(app).get_state("t") == states.PENDING


def test_other_tables_in_the_same_database_are_not_at_home(new_app: NewApp, database_url: str) -> None:
    options = {"atomic_prefix": "other"}
    backend = _backend(new_app(f"atomic+{database_url}", result_backend_transport_options=options))
    assert not backend.is_at_home
    backend.store_result("t", 1, states.SUCCESS)
    assert _count(backend.store, "atomic_result") == 1


def test_without_our_broker_it_wants_to_know_where(tmp_path: Path) -> None:
    app = Celery("elsewhere", broker="memory://", backend="atomic", set_as_current=False)
    with pytest.raises(errors.ConfigError, match="say which one"):
        app.backend.store  # noqa: B018
    app = Celery("elsewhere", broker="memory://", backend=f"atomic+sqlite:///{tmp_path}/r.db", set_as_current=False)
    app.backend.store_result("t", 1, states.SUCCESS)
    assert app.backend.get_result("t") == 1
    assert not _backend(app).is_at_home


def test_its_password_is_not_shown(new_app: NewApp, postgres_url: str) -> None:
    app = Celery("shown", broker=f"atomic+{postgres_url}", backend=f"atomic+{postgres_url}", set_as_current=False)
    password = postgres_url.split(":")[2].split("@")[0]
    assert password not in app.backend.as_uri()
    assert password in app.backend.as_uri(include_password=True)
    assert new_app().backend.as_uri() == "atomic"


def test_it_can_be_pickled_as_celery_does(app: Celery) -> None:
    app.set_current()
    copy = pickle.loads(pickle.dumps(_backend(app)))
    assert isinstance(copy, Backend)


# States


def test_a_task_of_which_nothing_is_known_is_pending(app: Celery) -> None:
    result: AsyncResult[Any] = AsyncResult("nobody", app=app)
    assert (result.state, result.result, result.ready()) == (states.PENDING, None, False)


@pytest.mark.parametrize("value", [None, 0, "", "ü\x00\U0001f600", [1, {"a": None}], {"k": [1.5, True]}, "x" * 100_000])
def test_a_value_comes_back(app: Celery, value: Any) -> None:
    _backend(app).mark_as_done("t", value)
    result: AsyncResult[Any] = AsyncResult("t", app=app)
    assert (result.state, result.result) == (states.SUCCESS, value)
    assert result.date_done is not None


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_every_serializer_works(new_app: NewApp, serializer: str, compression: str | None) -> None:
    if serializer == "yaml":
        pytest.importorskip("yaml")
    app = new_app(result_serializer=serializer, result_accept_content=[serializer], result_compression=compression)
    value = {"a": [1, 2, "ü"], "b": None}
    _backend(app).mark_as_done("t", value)
    assert AsyncResult("t", app=app).result == value
    _backend(app).mark_as_failure("f", KeyError("k"), traceback="tb")
    failed: AsyncResult[Any] = AsyncResult("f", app=app)
    assert (repr(failed.result), failed.traceback) == ("KeyError('k')", "tb")


def test_a_pickled_value_is_any_object(new_app: NewApp) -> None:
    app = new_app(result_serializer="pickle", result_accept_content=["pickle"])
    _backend(app).mark_as_done("t", timedelta(seconds=5))
    assert AsyncResult("t", app=app).result == timedelta(seconds=5)


def test_what_is_not_accepted_is_not_decoded(new_app: NewApp) -> None:
    _backend(new_app(result_serializer="pickle", result_accept_content=["pickle"])).mark_as_done("t", 1)
    from kombu.exceptions import DecodeError

    with pytest.raises((DecodeError, ValueError)):
        AsyncResult("t", app=new_app()).result  # noqa: B018


def test_a_result_of_64_mib(app: Celery) -> None:
    value = "x" * (64 * 1024 * 1024)
    _backend(app).mark_as_done("t", value)
    assert AsyncResult("t", app=app).result == value


def test_a_result_that_is_too_large_is_refused(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "LARGEST", 1000)
    from celery.exceptions import BackendStoreError

    with pytest.raises(BackendStoreError, match="too large"):
        _backend(app).mark_as_done("t", "x" * 1000)
    assert AsyncResult("t", app=app).state == states.PENDING


@pytest.mark.parametrize("state", [states.STARTED, "PROGRESS"])
def test_a_task_tells_how_far_it_is(app: Celery, state: str) -> None:
    _backend(app).store_result("t", {"step": 1}, state)
    result: AsyncResult[Any] = AsyncResult("t", app=app)
    assert (result.state, result.ready()) == (state, False)
    _backend(app).mark_as_done("t", 2)
    assert result.get(timeout=60) == 2


def test_success_stays(app: Celery) -> None:
    _backend(app).mark_as_done("t", 1)
    _backend(app).mark_as_failure("t", KeyError("late"))
    _backend(app).store_result("t", None, states.STARTED)
    assert AsyncResult("t", app=app).result == 1


def test_revoked(app: Celery) -> None:
    _backend(app).mark_as_revoked("t", "why")
    assert AsyncResult("t", app=app).state == states.REVOKED


def test_of_many_that_are_revoked_those_that_have_begun_stay_as_they_are(app: Celery) -> None:
    kept = {"a": "SUCCESS", "b": "FAILURE", "c": "STARTED", "d": "REVOKED"}
    for task_id, state in kept.items():
        app.backend.store_result(task_id, ValueError("why") if state in {"FAILURE", "REVOKED"} else 1, state)
    app.backend.store_result("e", None, "RETRY")
    new = [f"new {number}" for number in range(2100)]
    app.backend.mark_many_as_revoked([*kept, "e", *new], "no more")
    found = {task_id: app.AsyncResult(task_id).state for task_id in (*kept, "e", new[0], new[1000], new[-1])}
    assert found == {**kept, "e": "REVOKED", new[0]: "REVOKED", new[1000]: "REVOKED", new[-1]: "REVOKED"}
    with pytest.raises(TaskRevokedError, match="no more"):
        app.AsyncResult(new[-1]).get(timeout=60)


def test_extended_results(new_app: NewApp) -> None:
    app = new_app(result_extended=True)
    request = Context(
        id="t", task="name", args=[1], kwargs={"k": 2}, hostname="w@h", retries=3,
        delivery_info={"routing_key": "q"}, group="g", parent_id="p",
        stamped_headers=["tenant"], stamps={"tenant": "a"},
    )  # fmt: skip
    _backend(app).mark_as_done("t", 5, request)
    result: AsyncResult[Any] = AsyncResult("t", app=app)
    assert (result.name, result.args, result.kwargs, result.worker, result.retries, result.queue) == (
        "name", [1], {"k": 2}, "w@h", 3, "q",
    )  # fmt: skip
    meta = app.backend.get_task_meta("t")
    assert (meta["parent_id"], meta["group_id"], meta["tenant"]) == ("p", "g", "a")


def test_plain_results_do_not_tell_arguments(app: Celery) -> None:
    _backend(app).mark_as_done("t", 5, Context(id="t", task="name", args=["secret"]))
    assert "secret" not in str(app.backend.get_task_meta("t"))


def test_whether_a_result_exists(app: Celery) -> None:
    assert not app.backend.task_result_exists("t")
    _backend(app).mark_as_done("t", 5)
    assert app.backend.task_result_exists("t")


def test_a_result_can_be_forgotten(app: Celery) -> None:
    _backend(app).mark_as_done("t", 5)
    result: AsyncResult[Any] = AsyncResult("t", app=app)
    assert result.get(timeout=60) == 5
    result.forget()
    assert AsyncResult("t", app=app).state == states.PENDING


def test_many_are_read_together(app: Celery) -> None:
    for number in range(5):
        _backend(app).mark_as_done(f"t{number}", number)
    _backend(app).store_result("t5", None, states.STARTED)
    found = dict(app.backend.get_many({f"t{number}" for number in range(7)}, max_iterations=1))
    assert {task_id: meta["result"] for task_id, meta in found.items()} == {f"t{n}": n for n in range(5)}


def test_groups_are_kept(app: Celery) -> None:
    inner = GroupResult("inner", [AsyncResult("a", app=app)], app=app)
    GroupResult("outer", [inner, AsyncResult("b", app=app)], app=app).save()
    restored = GroupResult.restore("outer", app=app)
    assert restored is not None
    assert restored.results is not None
    assert [each.id for each in restored.results] == ["inner", "b"]
    restored.delete()
    assert GroupResult.restore("outer", app=app) is None


# Expiry


@pytest.mark.parametrize(
    ("conf", "gone"),
    [
        ({"result_expires": 60}, {"good", "bad"}),
        ({"result_expires": timedelta(minutes=1)}, {"good", "bad"}),
        ({"result_expires": 60, "result_failure_expires": 600}, {"good"}),
        ({"result_expires": 600, "result_failure_expires": 60}, {"bad"}),
        ({"result_expires": 0}, set()),
        ({"result_expires": None}, set()),
    ],
)
def test_results_expire(new_app: NewApp, conf: dict[str, Any], gone: set[str]) -> None:
    app = new_app(**conf)
    backend = _backend(app)
    backend.mark_as_done("good", 1)
    backend.mark_as_failure("bad", KeyError("k"))
    backend.store.at(backend.store.now_ms() + 61_000)
    backend._cache.clear()
    assert {task_id for task_id in ("good", "bad") if backend.get_state(task_id) == states.PENDING} == gone
    assert _count(backend.store, "atomic_result") == 2
    backend.cleanup()
    assert _count(backend.store, "atomic_result") == 2 - len(gone)


def test_beat_need_not_clean_up_at_home(app: Celery, new_app: NewApp, tmp_path: Path) -> None:
    assert app.backend.supports_autoexpire
    assert not new_app(f"atomic+sqlite:///{tmp_path}/other.db").backend.supports_autoexpire


# In a transaction of the application's


def test_a_chord_is_part_of_the_applications_transaction(app: Celery, database_url: str) -> None:
    import sqlalchemy
    from celery import chord

    from atomic_celery import publishing_in

    url = database_url.replace("postgresql://", "postgresql+psycopg2://")
    part, body = app.signature("part"), app.signature("body")
    engine = sqlalchemy.create_engine(url)
    store = _backend(app).store
    with engine.connect() as connection, publishing_in(connection):
        chord([part, part], body).delay()
        connection.rollback()
    assert (_count(store, "atomic_chord"), _count(store, "atomic_message")) == (0, 0)
    with engine.connect() as connection, publishing_in(connection):
        chord([part, part], body).delay()
        connection.commit()
    engine.dispose()
    assert (_count(store, "atomic_chord"), _count(store, "atomic_message")) == (1, 2)


def test_a_second_store_sees_what_the_first_recorded(app: Celery, database_url: str) -> None:
    _backend(app).mark_as_done("t", 5)
    with closing(open_store(database_url, app.backend.store.settings)) as store:
        assert store.results.get(["t"])["t"][0] == states.SUCCESS
