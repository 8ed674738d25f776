"""Queues: declared, asked about, emptied, deleted, abandoned."""

from __future__ import annotations

import kombu
import pytest
from kombu.exceptions import ChannelError

from atomic_celery.store import Store
from tests.support.waiting import wait_until
from tests.transport.conftest import Connect
from tests.transport.inbox import consuming, publish

QUEUE = kombu.Queue("queue", routing_key="queue")


def test_a_passive_declaration_asks_and_makes_nothing(connect: Connect, store: Store) -> None:
    channel = connect().default_channel
    with pytest.raises(ChannelError, match="no queue 'queue'"):
        QUEUE(channel).queue_declare(passive=True)
    assert store.queues.get("queue") is None
    publish(connect(), QUEUE, 1, 2, 3)
    assert QUEUE(channel).queue_declare(passive=True) == ("queue", 3, 0)


def test_a_queue_without_a_name_gets_one(connect: Connect, store: Store) -> None:
    name, size, _ = connect().default_channel.queue_declare(queue="")
    assert size == 0
    assert store.queues.get(name) is not None


def test_arguments_arrive_whether_kombu_or_rabbitmq_names_them(connect: Connect, store: Store) -> None:
    arguments = {"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "letters"}
    queue = kombu.Queue("q", expires=60, message_ttl=5, max_priority=9, queue_arguments=arguments)
    queue(connect().default_channel).declare()
    made = store.queues.get("q")
    assert made is not None
    assert (made.expires_ms, made.message_ttl_ms, made.max_priority) == (60_000, 5_000, 9)
    assert (made.dead_letter_exchange, made.dead_letter_routing_key) == ("dead", "letters")


def test_purging_counts_what_it_removes(connect: Connect) -> None:
    connection = connect()
    publish(connection, QUEUE, 1, 2, 3)
    assert QUEUE(connection.default_channel).purge() == 3
    assert QUEUE(connection.default_channel).get() is None
    with pytest.raises(ChannelError, match="no queue 'nowhere'"):
        connection.default_channel.queue_purge("nowhere")


def test_a_queue_is_deleted_with_what_is_in_it(connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, 1, 2)
    assert connection.default_channel.queue_delete("queue") == 2
    assert store.queues.get("queue") is None
    assert store.reads.messages() == []
    assert connection.default_channel.queue_delete("queue") == 0


def test_a_queue_is_kept_that_should_be_empty_and_is_not(connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, 1)
    with pytest.raises(ChannelError, match="has messages"):
        connection.default_channel.queue_delete("queue", if_empty=True)
    assert store.queues.get("queue") is not None


def test_a_queue_is_kept_that_should_be_unused_and_is_not(connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, 1)
    with consuming(connection, QUEUE) as inbox:
        inbox.wait(1)
        with pytest.raises(ChannelError, match="has consumers"):
            connect().default_channel.queue_delete("queue", if_unused=True)
    assert store.queues.get("queue") is not None


def test_an_exclusive_queue_goes_with_its_connection(connect: Connect, store: Store) -> None:
    with connect() as connection:
        kombu.Queue("mine", exclusive=True)(connection.default_channel).declare()
        assert store.queues.get("mine") is not None
    assert store.queues.get("mine") is None


def test_the_mailbox_of_a_killed_process_does_not_lock_out_its_successor(connect: Connect) -> None:
    first, second = connect(), connect()
    kombu.Queue("mailbox", exclusive=True)(first.default_channel).declare()
    kombu.Queue("mailbox", exclusive=True)(second.default_channel).declare()
    publish(second, kombu.Queue("mailbox", exclusive=True, routing_key="mailbox"), "hello")
    with consuming(second, kombu.Queue("mailbox", exclusive=True), no_ack=True) as inbox:
        assert inbox.wait(1) == ["hello"]


def test_an_abandoned_queue_expires_and_stops_collecting(connect: Connect, store: Store) -> None:
    connection = connect()
    events = kombu.Exchange("events", type="topic")
    abandoned = kombu.Queue("abandoned", events, routing_key="#", expires=10)
    abandoned(connection.default_channel).declare()
    kombu.Producer(connection, exchange=events).publish("collected", routing_key="a")
    assert store.reads.messages() != []
    store.at(store.now_ms() + 11_000)
    assert store.queues.expire() == [], "it takes two looks: who was just woken has not said so yet"
    assert store.queues.expire() == ["abandoned"]
    assert store.reads.messages() == []
    assert store.queues.bindings("events") == []


def test_a_queue_that_is_consumed_does_not_expire(connect: Connect, store: Store) -> None:
    connection = connect()
    queue = kombu.Queue("used", expires=2, routing_key="used")
    with consuming(connection, queue) as inbox:
        declared_ms = store.now_ms()

        def outlived() -> bool:
            inbox.drain()
            assert store.queues.expire() == []
            return store.now_ms() > declared_ms + 3_000

        wait_until(outlived, 60)
        publish(connect(), queue, "alive")
        assert inbox.wait(1) == ["alive"]


def test_a_consumed_queue_that_somebody_deleted_is_declared_again(connect: Connect, store: Store) -> None:
    connection, other = connect(), connect()
    exchange = kombu.Exchange("kept", type="fanout")
    queue = kombu.Queue("kept", exchange, expires=3)
    with consuming(connection, queue) as inbox:
        inbox.drain()
        other.default_channel.queue_delete("kept")

        def declared_again() -> bool:
            inbox.drain()
            return store.queues.get("kept") is not None and store.queues.bindings("kept") != []

        wait_until(declared_again, 60)
        kombu.Producer(other, exchange=exchange).publish("there")
        assert inbox.wait(1) == ["there"]
