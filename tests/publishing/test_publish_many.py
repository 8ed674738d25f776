"""publish_many sends exactly what apply_async sends, many to a statement."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, chain, group, signals
from celery.app.task import Task
from celery.canvas import Signature

import atomic_celery
from tests.publishing.conftest import Office

ETA = datetime.datetime(2040, 1, 1, 12, tzinfo=datetime.timezone.utc)
Make = Callable[[Office, Any], Signature]

KINDS: dict[str, Make] = {
    "plain": lambda office, i: office.task("add").s(i),
    "keywords": lambda office, i: office.task("add").s(x=i, y="text"),
    "nested arguments": lambda office, i: office.task("add").s([i, {"a": (1, 2)}], {"é": "ü\U0001f600\ud800\x00'\""}),
    "long arguments": lambda office, i: office.task("add").s("x" * 5000, list(range(2000))),
    "percent signs": lambda office, i: office.task("add").s("100 %", "%(id)s").set(shadow="50 %s"),
    "bound": lambda office, i: office.task("bound").s(i),
    "routed": lambda office, i: office.task("routed.add").s(i),
    "task options": lambda office, i: office.task("urgent").s(i),
    "queue": lambda office, i: office.task("add").s(i).set(queue="other", priority=7),
    "exchange": lambda office, i: office.task("add").s(i).set(exchange="celery", routing_key="celery"),
    "eta": lambda office, i: office.task("add").s(i).set(eta=ETA),
    "limits": lambda office, i: office.task("add").s(i).set(time_limit=9, soft_time_limit=8, retries=3),
    "shadow": lambda office, i: office.task("add").s(i).set(shadow="other name", argsrepr="<hidden>"),
    "headers": lambda office, i: office.task("add").s(i).set(headers={"trace": str(i)}),
    "link": lambda office, i: office.task("add").s(i).set(link=[office.task("add").s(1)]),
    "stamped": lambda office, i: _stamped(office.task("add").s(i), mark=str(i)),
    "results": lambda office, i: office.task("add").s(i).set(ignore_result=False, reply_to="me"),
    "unknown here": lambda office, i: Signature("elsewhere.task", (i,), {"k": i}, app=office.app),
    "compressed pickle": lambda office, i: office.task("add").s(i).set(serializer="pickle", compression="bzip2"),
    "family": lambda office, i: office.task("add").s(i).set(root_id="root", parent_id="parent", group_id="group"),
}


def _stamped(signature: Signature, **stamps: str) -> Signature:
    signature.stamp(**stamps)
    return signature


@pytest.mark.parametrize("make", KINDS.values(), ids=list(KINDS))
def test_a_copy_is_what_celery_would_have_sent(office: Office, make: Make) -> None:
    values = [1, "two", None, 4.5]
    for number, value in enumerate(values):
        make(office, value).apply_async(task_id=f"task-{number}")
    one_by_one, places = office.stored(), [(view.queue, view.priority, view.due_ms) for view in office.views()]
    office.purge()

    signatures = [make(office, value).set(task_id=f"task-{number}") for number, value in enumerate(values)]
    results = atomic_celery.publish_many(signatures, app=office.app)

    assert office.stored() == one_by_one
    assert [(view.queue, view.priority, view.due_ms) for view in office.views()] == places
    assert [result.id for result in results] == ["task-0", "task-1", "task-2", "task-3"]


def test_results_come_back_in_order_with_ids_of_their_own(office: Office) -> None:
    results = atomic_celery.publish_many((office.task("add").s(number) for number in range(2500)), app=office.app)

    assert office.task_ids() == [result.id for result in results]
    assert len(set(office.task_ids())) == 2500
    assert {message["headers"]["root_id"] for message in office.stored()} == set(office.task_ids())


def test_a_thousand_messages_are_one_statement(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = _watch_statements(office, monkeypatch)

    atomic_celery.publish_many((office.task("add").s(number) for number in range(2500)), app=office.app)

    assert sizes == [1000, 1000, 500]


def test_a_countdown_goes_on_counting_from_one_statement_to_the_next(office: Office) -> None:
    signatures = (office.task("add").s(number).set(countdown=60) for number in range(2500))
    atomic_celery.publish_many(signatures, app=office.app)

    dues_ms = [view.due_ms for view in office.views()]
    assert dues_ms == sorted(dues_ms)
    assert len(set(dues_ms)) >= 3


def test_a_copy_expires_as_the_first_does(office: Office) -> None:
    atomic_celery.publish_many((office.task("add").s(number).set(expires=ETA) for number in range(3)), app=office.app)

    first, *copies = office.stored()
    assert [copy["headers"]["expires"] for copy in copies] == [first["headers"]["expires"]] * 2
    assert len({view.expires_ms for view in office.views()}) == 1


def test_canvases_are_sent_too(office: Office) -> None:
    add = office.task("add")
    pair, steps, single = atomic_celery.publish_many(
        [group(add.s(1), add.s(2)), chain(add.s(3), add.s(4)), add.s(5)], app=office.app
    )

    assert office.task_ids() == [pair[0].id, pair[1].id, steps.parent.id, single.id]


def test_wrong_arguments_are_refused_as_by_apply_async(office: Office) -> None:
    signatures = [office.task("add").s(1), office.task("add").s(1, 2, 3)]

    with pytest.raises(TypeError):
        atomic_celery.publish_many(signatures, app=office.app)

    assert office.task_ids() == []


def test_receivers_hear_of_every_message_and_may_change_it(office: Office) -> None:
    sent: list[str] = []

    def mark(headers: dict[str, Any], **_: Any) -> None:
        headers["mark"] = len(sent)

    def note(headers: dict[str, Any], **_: Any) -> None:
        sent.append(headers["id"])

    signals.before_task_publish.connect(mark)
    signals.after_task_publish.connect(note)
    try:
        results = atomic_celery.publish_many((office.task("add").s(number) for number in range(3)), app=office.app)
    finally:
        signals.before_task_publish.disconnect(mark)
        signals.after_task_publish.disconnect(note)

    assert sent == [result.id for result in results] == office.task_ids()
    assert [message["headers"]["mark"] for message in office.stored()] == [0, 1, 2]


def test_a_router_that_is_code_sees_every_message(office: Office) -> None:
    def by_parity(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> Any:
        return {"queue": "even" if args[0] % 2 == 0 else "odd"}

    office.app.conf.task_routes = (by_parity,)

    atomic_celery.publish_many((office.task("add").s(number) for number in range(4)), app=office.app)

    assert [view.queue for view in office.views()] == ["even", "odd", "even", "odd"]


def test_an_apply_async_of_its_own_is_called(office: Office) -> None:
    class Loud(office.app.Task):  # type: ignore[misc,name-defined]
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            return super().apply_async(args, kwargs, **{**options, "priority": 5})

    loud = office.app.task(_identity, name="loud", base=Loud, shared=False)

    atomic_celery.publish_many((loud.s(number) for number in range(3)), app=office.app)

    assert [view.priority for view in office.views()] == [5, 5, 5]


@pytest.mark.parametrize("owner", [Signature, Task, Celery])
def test_what_others_have_wrapped_around_celery_is_called(
    office: Office, owner: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "send_task" if owner is Celery else "apply_async"
    wrapped, calls = getattr(owner, name), []

    @functools.wraps(wrapped)
    def watching(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return wrapped(*args, **kwargs)

    monkeypatch.setattr(owner, name, watching)

    atomic_celery.publish_many((office.task("add").s(number) for number in range(3)), app=office.app)

    assert len(calls) == 3


def test_eager_apps_run_the_tasks_at_once(office: Office) -> None:
    office.app.conf.task_always_eager = True

    results = atomic_celery.publish_many([office.task("add").s(1, 2), office.task("add").s(3, 4)], app=office.app)

    assert [result.get() for result in results] == [(1, 2), (3, 4)]
    assert office.task_ids() == []


def test_what_is_unfinished_already_is_not_stored_again(office: Office) -> None:
    signatures = [office.task("add").s(number).set(task_id=f"task-{number}") for number in range(3)]
    atomic_celery.publish_many(signatures[:2], app=office.app)

    atomic_celery.publish_many(signatures, app=office.app)

    assert office.task_ids() == ["task-0", "task-1", "task-2"]


def test_nothing_to_send_is_nothing_sent(office: Office) -> None:
    assert atomic_celery.publish_many([], app=office.app) == []


def test_another_broker_sends_as_it_always_does() -> None:
    app = Celery("memory", broker="memory://", set_as_current=False)
    task = app.task(_identity, name="task", shared=False)

    results = atomic_celery.publish_many([task.s(1), task.s(2)], app=app)

    with app.connection_for_read() as connection:
        taken = [connection.default_channel.basic_get("celery").headers["id"] for _ in results]
    assert taken == [result.id for result in results]


def _watch_statements(office: Office, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many messages each statement stores, of any store in this process."""
    messages, sizes = type(office.store.messages), []
    publish = messages.publish

    def watched(self: Any, new: Any) -> Any:
        sizes.append(len(new))
        return publish(self, new)

    monkeypatch.setattr(messages, "publish", watched)
    return sizes


def _identity(x: object) -> object:
    return x
