"""What a task says of its limits: read right, refused clearly, and joined where it is there already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kombu.pools
import pytest
from celery import Celery, group

import atomic_celery
from atomic_celery import errors, limits
from atomic_celery.config import Settings
from atomic_celery.store import open_store
from atomic_celery.store.reads import MessageView
from atomic_celery.store.records import Limit
from atomic_celery.store.store import Store


class Task:
    """As much of a task as declares something."""

    name = "shop.pay"

    def __init__(self, **attributes: Any) -> None:
        vars(self).update({f"atomic_{name}": value for name, value in attributes.items()})


@pytest.fixture
def app(database_url: str) -> Iterator[Celery]:
    """An app that publishes to each kind of database."""
    store = open_store(database_url, Settings())
    store.schema.migrate()
    with Celery("limits", broker=f"atomic+{database_url}", backend="atomic", set_as_current=False) as app:
        app.store = store
        yield app
    kombu.pools.reset()
    store.close()


def views(app: Any) -> list[MessageView]:
    """Return what is stored, in the order of publishing."""
    store: Store = app.store
    return sorted(store.reads.messages(), key=lambda view: view.id)


@pytest.mark.parametrize(
    ("says", "starts", "in_ms"),
    [
        ("100/m", 100, 60_000),
        ("10/s", 10, 1000),
        ("10", 10, 1000),
        (10, 10, 1000),
        ("0.5/s", 1, 2000),
        ("2/h", 2, 3_600_000),
        (2.5, 5, 2000),
        ("1000 / h", 1000, 3_600_000),
    ],
)
def test_a_rate_is_read_as_celery_writes_it(says: Any, starts: int, in_ms: int) -> None:
    limit = limits.of_task(Task(rate_limit=says))

    assert (limit.rate_starts, limit.rate_ms) == (starts, in_ms)


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"rate_limit": "often"}, "atomic_rate_limit must be a number"),
        ({"rate_limit": "5/d"}, "atomic_rate_limit must be a number"),
        ({"rate_limit": "1/0"}, "atomic_rate_limit must be a number"),
        ({"rate_limit": 0}, "atomic_rate_limit must be above 0"),
        ({"rate_limit": "-1/m"}, "atomic_rate_limit must be above 0"),
        ({"max_running": 0}, "atomic_max_running must be a whole number above 0, got 0"),
        ({"max_running": "5"}, "atomic_max_running must be a whole number above 0, got '5'"),
        ({"max_running": True}, "atomic_max_running must be"),
        ({"unique": "always"}, "atomic_unique must be 'queued' or 'unfinished', got 'always'"),
        ({"max_running": 1, "key": 5}, "atomic_key must be text"),
    ],
)
def test_what_makes_no_sense_is_refused(attributes: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"shop.pay: {says}"):
        limits.of_call(Task(**attributes), (), {})


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("tenant-{args[0]}", "tenant-7"),
        ("{kwargs[who]}/{args[1][name]}", "me/x"),
        ("{args[2][1]:>3}", "  b"),
        ("{{}}", "{}"),
        ("all", "all"),
    ],
)
def test_a_key_is_filled_in_with_the_arguments(template: str, key: str) -> None:
    declared = limits.of_call(Task(max_running=1, key=template), (7, {"name": "x"}, ["a", "b"]), {"who": "me"})

    assert declared.limit == Limit(f"shop.pay:{key}", "shop.pay", max_running=1)


@pytest.mark.parametrize(
    "template",
    [
        "{args[9]}",
        "{kwargs[nobody]}",
        "{args[0].__class__}",
        "{args.__class__}",
        "{args[1][__class__]}",
        "{args}",
        "{args[0][0]}",
        "{}",
        "{0}",
        "{who}",
        "{args[1]}",
        "{args[0]",
        "{args[3]}",
        "{args[4]}",
    ],
)
def test_a_key_that_cannot_be_filled_in_is_an_error_where_it_is_sent(template: str) -> None:
    args = (7, {"name": "x"}, None, "nul\0", "\ud800")

    with pytest.raises(errors.LimitKeyError, match=r"shop\.pay: atomic_key .* cannot be filled in"):
        limits.of_call(Task(max_running=1, key=template), args, {"who": "me"})


def test_a_call_that_is_no_json_needs_a_key_to_be_unique() -> None:
    with pytest.raises(errors.LimitKeyError, match="its arguments are not JSON"):
        limits.of_call(Task(unique="queued"), (object(),), {})


def test_without_a_key_calls_with_the_same_arguments_are_the_same() -> None:
    task = Task(unique="queued")

    def key(*args: Any, **kwargs: Any) -> str | None:
        return limits.of_call(task, args, kwargs).unique_key

    assert key(1, a=1, b=2) == key(1, b=2, a=1)
    assert key(1) != key("1")


def test_a_retry_is_in_nobodys_way() -> None:
    assert limits.of_call(Task(unique="queued"), (1,), {}, retries=1) is not limits.NOTHING
    assert limits.of_call(Task(unique="queued"), (1,), {}, retries=1).unique_key is None
    assert limits.of_call(Task(unique="unfinished"), (1,), {}, retries=1).unique_key is not None


def test_whoever_sends_a_task_sends_its_limits(app: Celery) -> None:
    task = app.task(_nothing, name="limited", atomic_max_running=3, atomic_rate_limit="5/m", typing=False)

    task.delay()
    app.send_task("limited")
    atomic_celery.publish_many([task.si() for _ in range(2)], app=app)
    group(task.si() for _ in range(2)).apply_async()
    task.apply_async(countdown=60)

    assert [view.state for view in views(app)] == ["limited"] * 6 + ["delayed"]
    assert {view.reason for view in views(app)} == {"limited", None}


def test_nothing_is_stored_if_the_key_cannot_be_filled_in(app: Celery) -> None:
    task = app.task(_nothing, name="keyed", atomic_max_running=3, atomic_key="{args[0]}", typing=False)

    with pytest.raises(errors.LimitKeyError):
        task.delay()

    assert views(app) == []


@pytest.mark.parametrize("until", ["queued", "unfinished"])
def test_a_second_call_joins_the_first(app: Celery, until: str) -> None:
    task = app.task(_nothing, name="unique", atomic_unique=until, typing=False)

    first, second, other = task.delay(1), task.delay(1), task.delay(2)
    later = task.apply_async((1,), countdown=60)
    sent = app.send_task("unique", (1,))

    assert first.id == second.id == later.id == sent.id != other.id
    assert [view.task_id for view in views(app)] == [first.id, other.id]


def test_calls_that_are_sent_together_join_each_other(app: Celery) -> None:
    task = app.task(_nothing, name="unique", atomic_unique="unfinished", typing=False)
    before = task.delay(1)

    results = atomic_celery.publish_many([task.si(1), task.si(2), task.si(2)], app=app)

    assert [result.id for result in results] == [before.id, results[1].id, results[1].id]
    assert len(views(app)) == 2


def test_a_call_with_the_same_id_is_no_second_one(app: Celery) -> None:
    task = app.task(_nothing, name="unique", atomic_unique="unfinished", typing=False)

    results = [task.apply_async((1,), task_id="mine") for _ in range(2)]

    assert [result.id for result in results] == ["mine", "mine"]
    assert len(views(app)) == 1


def _nothing(*_: object) -> None:
    """Never run."""
