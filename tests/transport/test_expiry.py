"""Messages that are too late, or not wanted: dropped, dead-lettered, or left to Celery to revoke."""

from __future__ import annotations

from typing import Any

import kombu
import pytest

from atomic_celery.store import Store
from tests.support.waiting import wait_until
from tests.transport.conftest import Connect
from tests.transport.inbox import publish

QUEUE = kombu.Queue("short", routing_key="short")


def wait_expired(store: Store) -> None:
    wait_until(lambda: all(store.now_ms() > (view.expires_ms or 0) for view in store.reads.messages()))


def dead_lettering(**options: Any) -> tuple[kombu.Queue, kombu.Queue]:
    letters = kombu.Exchange("dead", type="topic")
    arguments = {"x-dead-letter-exchange": "dead"}
    return (
        kombu.Queue("living", routing_key="living", queue_arguments=arguments, **options),
        kombu.Queue("letters", letters, routing_key="#"),
    )


def test_a_message_that_expired_is_dropped_and_the_next_one_delivered(connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, "late", expiration=0.001)
    wait_expired(store)
    publish(connection, QUEUE, "in time")
    assert QUEUE(connection.default_channel).get().decode() == "in time"
    assert [view.state for view in store.reads.messages()] == ["running"]


def test_the_time_to_live_of_the_queue_counts_and_the_shorter_one_wins(connect: Connect, store: Store) -> None:
    connection = connect()
    brief = kombu.Queue("brief", routing_key="brief", message_ttl=60)
    before_ms = store.now_ms()
    publish(connection, brief, "queue's")
    publish(connection, brief, "own", expiration=5)
    publish(connection, brief, "queue's again", expiration=600)
    lives_s = [round((view.expires_ms - before_ms) / 1000) for view in reversed(store.reads.messages())]
    assert [abs(lives - wanted) <= 30 for lives, wanted in zip(lives_s, (60, 5, 60), strict=True)] == [True] * 3


def test_an_expired_task_is_delivered_flagged_for_celery_to_revoke(connect: Connect, store: Store) -> None:
    connection = connect()
    headers = {"id": "t1", "task": "a.task", "expires": "2024-01-01T00:00:00+00:00"}
    publish(connection, QUEUE, [[], {}, {}], headers=headers)
    message = QUEUE(connection.default_channel).get()
    assert message.properties["atomic"]["expired"]


def test_a_task_that_its_queue_let_expire_is_dropped(connect: Connect, store: Store) -> None:
    connection = connect()
    brief = kombu.Queue("brief", routing_key="brief", message_ttl=0.001)
    publish(connection, brief, [[], {}, {}], headers={"id": "t1", "task": "a.task"})
    wait_expired(store)
    assert brief(connection.default_channel).get() is None
    assert store.reads.messages() == []


@pytest.mark.parametrize("reason", ["rejected", "expired"])
def test_what_is_not_wanted_goes_where_the_queue_sends_its_dead_letters(
    connect: Connect, store: Store, reason: str
) -> None:
    connection = connect()
    living, letters = dead_lettering()
    letters(connection.default_channel).declare()
    publish(connection, living, "unwanted", headers={"own": 1}, expiration=0.001 if reason == "expired" else None)
    if reason == "expired":
        wait_expired(store)
        assert living(connection.default_channel).get() is None
    else:
        living(connection.default_channel).get().reject()
    letter = letters(connection.default_channel).get()
    assert letter.decode() == "unwanted"
    assert letter.headers["own"] == 1
    [death] = letter.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == ("living", reason, 1)
    assert death["routing-keys"] == ["living"]
    assert letter.properties["atomic"]["expired"] is False
    assert len(store.reads.messages()) == 1


def test_dead_letters_may_have_a_routing_key_of_their_own_and_count_their_deaths(connect: Connect) -> None:
    connection = connect()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "circle"}
    circle = kombu.Queue("circle", routing_key="circle", queue_arguments=arguments)
    publish(connection, circle, "round")
    bound = circle(connection.default_channel)
    for deaths in range(3):
        message = bound.get()
        assert message.headers.get("x-death", [{"count": 0}])[0]["count"] == deaths
        message.reject()


def test_a_dead_task_may_live_on_in_another_queue_under_its_id(connect: Connect, store: Store) -> None:
    connection = connect()
    living, letters = dead_lettering()
    letters(connection.default_channel).declare()
    publish(connection, living, [[], {}, {}], headers={"id": "t1", "task": "a.task"})
    living(connection.default_channel).get().reject()
    [view] = store.reads.messages()
    assert (view.task_id, view.queue) == ("t1", "letters")
