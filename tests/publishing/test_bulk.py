"""bulk() and groups send what they send in few statements, and nothing of a block that fails."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery, chord, group
from kombu.exceptions import OperationalError

import atomic_celery
from atomic_celery import errors, mailbag
from atomic_celery.store.messages import Messages
from tests.publishing.conftest import Office


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each statement stores, from here on."""
    sizes: list[int] = []
    publish = Messages.publish

    def watched(self: Messages, new: Any) -> Any:
        sizes.append(len(new))
        return publish(self, new)

    monkeypatch.setattr(Messages, "publish", watched)
    return sizes


def test_a_block_sends_at_its_end(office: Office, statements: list[int]) -> None:
    with atomic_celery.bulk(office.app):
        results = [office.task("add").delay(number) for number in range(1200)]
        assert office.task_ids() == []

    assert office.task_ids() == [result.id for result in results]
    assert statements == [1000, 200]


def test_a_block_that_raises_has_sent_nothing(office: Office) -> None:
    with pytest.raises(ZeroDivisionError), atomic_celery.bulk(office.app):
        _fail_after(office.task("add").delay(1))

    assert office.task_ids() == []


def test_an_inner_block_belongs_to_the_outer_one(office: Office, statements: list[int]) -> None:
    with atomic_celery.bulk(office.app):
        with atomic_celery.bulk(office.app):
            office.task("add").delay(1)
        group(office.task("add").s(2), office.task("add").s(3)).apply_async()
        assert office.task_ids() == []

    assert statements == [3]


def test_all_options_come_along(office: Office) -> None:
    with atomic_celery.bulk(office.app):
        office.task("add").apply_async((1,), queue="slow", priority=3, countdown=3600, task_id="order-1")
        office.app.send_task("elsewhere.task", (2,), queue="slow")

    late, named = office.views()
    assert (late.task_id, late.queue, late.priority, late.state) == ("order-1", "slow", 3, "delayed")
    assert (named.task_name, named.queue, named.state) == ("elsewhere.task", "slow", "ready")


def test_broadcasts_do_not_wait(office: Office) -> None:
    with office.app.connection_for_read() as connection:
        mailbox = office.app.control.mailbox(connection).Node("here", channel=connection.default_channel)
        with mailbox.listen() as _, atomic_celery.bulk(office.app):
            office.app.control.broadcast("ping")
            assert [view.task_name for view in office.views()] == [None]


def test_a_context_that_outlives_the_block_sends_at_once(office: Office) -> None:
    with atomic_celery.bulk(office.app):
        context = contextvars.copy_context()
    result = context.run(office.task("add").delay, 1)

    assert office.task_ids() == [result.id]


def test_other_threads_send_at_once(office: Office) -> None:
    with atomic_celery.bulk(office.app):
        thread = threading.Thread(target=office.task("add").delay, args=(1,))
        thread.start()
        thread.join()
        assert len(office.task_ids()) == 1


def test_threads_that_share_the_block_s_context_lose_nothing(office: Office) -> None:
    with atomic_celery.bulk(office.app):
        contexts = [contextvars.copy_context() for _ in range(4)]
        threads = [threading.Thread(target=context.run, args=(_send, office, 50)) for context in contexts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(office.task_ids()) == 200


def test_a_lost_answer_is_asked_for_again_and_nothing_is_stored_twice(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _answers_lost(monkeypatch, 1), atomic_celery.bulk(office.app):
        results = [office.task("add").delay(number) for number in range(3)]

    assert office.task_ids() == [result.id for result in results]


def test_a_database_that_stays_away_is_kombu_s_error(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    office.app.conf.task_publish_retry_policy = {"max_retries": 1, "interval_start": 0}
    with (
        pytest.raises(OperationalError, match="no answer"),
        _answers_lost(monkeypatch, 100),
        atomic_celery.bulk(office.app),
    ):
        office.task("add").delay(1)


def test_a_group_is_one_statement(office: Office, statements: list[int]) -> None:
    result = group([office.task("add").s(number) for number in range(1200)]).apply_async()

    assert statements == [1000, 200]
    assert office.task_ids() == [child.id for child in result.children]
    assert {message["headers"]["group"] for message in office.stored()} == {result.id}


def test_the_first_part_of_a_group_that_is_read_lazily_does_not_wait(office: Office, statements: list[int]) -> None:
    group(office.task("add").s(number) for number in range(1200)).apply_async()

    assert statements == [1, 1000, 199]


def test_the_parts_of_a_group_that_come_slowly_are_sent_as_they_come(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbag, "SLOW_S", 0.0)
    stored = []

    def parts() -> Iterator[Any]:
        for number in range(5):
            stored.append(len(office.task_ids()))
            yield office.task("add").s(number)

    group(parts()).apply_async()

    assert stored[-1] > 0
    assert len(office.task_ids()) == 5


def test_a_chord_s_header_is_one_statement(office: Office, statements: list[int]) -> None:
    office.app.conf.result_backend = "cache+memory://"
    header = [office.task("add").s(number) for number in range(3)]
    chord(header, office.task("untyped").s()).apply_async()

    assert statements[0] == 3


def test_a_group_that_cannot_be_sent_whole_is_not_sent(office: Office) -> None:
    with pytest.raises(TypeError):
        group(office.task("add").s(1), office.task("add").s(1, 2, 3)).apply_async()

    assert office.task_ids() == []


def test_a_group_on_another_broker_is_celery_s(statements: list[int]) -> None:
    app = Celery("memory", broker="memory://", set_as_current=False)
    task = app.task(_send, name="task", typing=False, shared=False)

    result = group(task.s(1), task.s(2), app=app).apply_async()

    with app.connection_for_read() as connection:
        taken = [connection.default_channel.basic_get("celery").headers["id"] for _ in result.children]
    assert taken == [child.id for child in result.children]
    assert statements == []


def _fail_after(_: object) -> None:
    raise ZeroDivisionError


def _send(office: Office, count: int) -> None:
    for number in range(count):
        office.task("add").delay(number)


@contextmanager
def _answers_lost(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[None]:
    """Lose the answers to the next publications: they were stored, but nobody was told."""
    publish, left = Messages.publish, [count]

    def lost(self: Messages, new: Any) -> Any:
        answer = publish(self, new)
        if left[0]:
            left[0] -= 1
            raise errors.StoreUnavailable("no answer from the database")
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Messages, "publish", lost)
        yield
