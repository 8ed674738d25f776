"""Consumers: how much they hold, in what order they get it, and how they let it go."""

from __future__ import annotations

import socket

import kombu
import pytest
from kombu.exceptions import ChannelError

from atomic_celery.store import NewMessage, Store
from tests.transport.conftest import Connect
from tests.transport.inbox import consuming, publish

QUEUE = kombu.Queue("work", routing_key="work")


def states(store: Store) -> list[str]:
    return sorted(view.state for view in store.reads.messages())


def test_a_consumer_holds_no_more_than_its_prefetch_count(connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, *range(5))
    with consuming(connection, QUEUE, prefetch=2) as inbox:
        inbox.drain()
        assert inbox.bodies == [0, 1]
        assert states(store) == ["ready"] * 3 + ["running"] * 2
        inbox.messages[0].ack()
        inbox.drain()
        assert inbox.bodies == [0, 1, 2]


def test_the_prefetch_count_may_change_while_consuming(connect: Connect) -> None:
    connection = connect()
    publish(connection, QUEUE, *range(6))
    with consuming(connection, QUEUE, prefetch=1) as inbox:
        inbox.drain()
        assert len(inbox.bodies) == 1
        connection.default_channel.basic_qos(0, 4, False)
        inbox.drain()
        assert len(inbox.bodies) == 4
        connection.default_channel.basic_qos(0, 0, False)
        inbox.drain()
        assert len(inbox.bodies) == 6


@pytest.mark.parametrize("how", ["ack", "reject", "requeue", "forget"])
def test_every_ending_gives_the_room_back(connect: Connect, how: str) -> None:
    connection = connect()
    publish(connection, QUEUE, *range(20))
    with consuming(connection, QUEUE, prefetch=1) as inbox:
        for _ in range(10):
            inbox.drain()
            message = inbox.messages.pop()
            if how == "forget":
                connection.default_channel.qos.forget(message.delivery_tag)
            else:
                getattr(message, how)()
        inbox.drain()
        assert len(inbox.messages) == 1


def test_nine_comes_first_and_within_a_priority_the_oldest(connect: Connect) -> None:
    connection = connect()
    for body, priority in (("a", 0), ("b", 9), ("c", 3), ("d", 9), ("e", 0)):
        publish(connection, QUEUE, body, priority=priority)
    with consuming(connection, QUEUE) as inbox:
        assert inbox.wait(5) == ["b", "d", "c", "a", "e"]


def test_a_released_message_is_first_in_line_again_and_says_that_it_came_before(connect: Connect) -> None:
    connection = connect()
    publish(connection, QUEUE, "first", "second")
    bound = QUEUE(connection.default_channel)
    message = bound.get()
    assert not message.delivery_info["redelivered"]
    message.requeue()
    again = bound.get()
    assert (again.decode(), again.delivery_info["redelivered"]) == ("first", True)
    assert again.properties["atomic"]["fence"] == 2


def test_two_consumers_never_get_the_same_message(connect: Connect) -> None:
    one, two = connect(), connect()
    publish(one, QUEUE, *range(20))
    with consuming(one, QUEUE, prefetch=7) as first, consuming(two, QUEUE, prefetch=13) as second:
        first.drain()
        second.drain()
        assert sorted(first.bodies + second.bodies) == list(range(20))
        assert (len(first.bodies), len(second.bodies)) == (7, 13)


def test_a_rejected_message_without_a_dead_letter_exchange_is_gone(connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, "no")
    QUEUE(connection.default_channel).get().reject()
    assert store.reads.messages() == []


def test_acknowledging_several_at_once_ends_them_all(connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, *range(4))
    with consuming(connection, QUEUE) as inbox:
        inbox.wait(4)
        inbox.messages[2].ack(multiple=True)
        assert [view.state for view in store.reads.messages()] == ["running"]


def test_recovering_makes_all_of_a_channel_ready_again(connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, *range(3))
    with consuming(connection, QUEUE) as inbox:
        inbox.wait(3)
        inbox.messages[0].ack()
        connection.default_channel.basic_recover(requeue=True)
        assert states(store) == ["ready", "ready"]


def test_closing_gives_back_what_was_not_settled_and_a_late_ack_is_harmless(connect: Connect, store: Store) -> None:
    with connect() as connection:
        publish(connection, QUEUE, "kept")
        message = QUEUE(connection.default_channel).get()
        assert states(store) == ["running"]
    assert states(store) == ["ready"]
    message.ack()
    assert states(store) == ["ready"]


def test_a_cancelled_consumer_gets_nothing_more(connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, "one")
    with consuming(connection, QUEUE) as inbox:
        inbox.wait(1)
    publish(connection, QUEUE, "two")
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=0)
    assert states(store) == ["ready", "running"]


def test_one_of_several_consumers_is_cancelled_at_run_time(connect: Connect) -> None:
    connection = connect()
    more = kombu.Queue("more", routing_key="more")
    with consuming(connection, QUEUE) as inbox:
        with consuming(connection, more) as other:
            publish(connection, more, "m1")
            publish(connection, QUEUE, "w1")
            inbox.drain()
            assert (other.bodies, inbox.bodies) == (["m1"], ["w1"])
        publish(connection, more, "m2")
        publish(connection, QUEUE, "w2")
        inbox.drain()
        assert (other.bodies, inbox.bodies) == (["m1"], ["w1", "w2"])


def test_channels_of_one_connection_have_prefetch_counts_of_their_own(connect: Connect) -> None:
    connection = connect()
    more = kombu.Queue("more", routing_key="more")
    publish(connection, QUEUE, *range(5))
    publish(connection, more, *range(5))
    with (
        connection.channel() as one,
        connection.channel() as two,
        consuming(connection, QUEUE, prefetch=1, channel=one) as first,
        consuming(connection, more, prefetch=3, channel=two) as second,
    ):
        first.drain()
        assert (len(first.bodies), len(second.bodies)) == (1, 3)


def test_messages_that_nobody_acknowledges_are_gone_once_delivered(connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, "a", "b")
    with consuming(connection, QUEUE, no_ack=True) as inbox:
        connection.drain_events(timeout=60)
        assert inbox.bodies == ["a"], "one at a time: whoever waits for one reply leaves the others to the next call"
        assert inbox.wait(2) == ["a", "b"]
    assert store.reads.messages() == []


def test_what_cannot_be_delivered_because_a_callback_failed_comes_with_the_next_call(connect: Connect) -> None:
    connection = connect()
    publish(connection, QUEUE, *range(3))
    seen = []

    def fail_once(message: object) -> None:
        seen.append(message)
        if len(seen) == 1:
            raise RuntimeError("on purpose")

    with kombu.Consumer(connection, [QUEUE], on_message=fail_once):
        with pytest.raises(RuntimeError, match="on purpose"):
            connection.drain_events(timeout=60)
        connection.drain_events(timeout=60)
    assert len(seen) == 3


def test_consuming_from_nowhere_is_refused(connect: Connect) -> None:
    with pytest.raises(ChannelError, match="no queue 'nowhere'"):
        connect().default_channel.basic_consume("nowhere", False, print, "tag")
    with pytest.raises(ChannelError, match="no queue 'nowhere'"):
        connect().default_channel.basic_get("nowhere")


def test_a_payload_that_cannot_be_read_is_buried_and_stops_nobody(connect: Connect, store: Store) -> None:
    connection = connect()
    publish(connection, QUEUE, "good")
    queue = store.queues.get("work")
    assert queue is not None
    store.messages.publish([NewMessage(queue.id, payload="{", priority=9)])
    with consuming(connection, QUEUE) as inbox:
        assert inbox.wait(1) == ["good"]
        for _ in range(store.settings.max_crashes):
            inbox.drain()
        assert states(store) == ["dead", "running"]
