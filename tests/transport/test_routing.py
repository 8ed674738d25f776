"""Exchanges, bindings, and what a publisher remembers of them."""

from __future__ import annotations

from collections.abc import Sequence

import kombu
import pytest
from kombu.exceptions import ChannelError

from atomic_celery.store import NewMessage
from atomic_celery.store.messages import Messages
from atomic_celery.store.queues import Binding
from atomic_celery.transport import topology
from tests.support.waiting import wait_until
from tests.transport.conftest import Connect
from tests.transport.inbox import publish


@pytest.mark.parametrize(
    ("pattern", "matches", "differs"),
    [
        ("a", ["a"], ["", "b", "a.b"]),
        ("a.*", ["a.b", "a.x1"], ["a", "a.b.c", "b.a"]),
        ("*.b", ["a.b"], ["b", "a.b.c"]),
        ("#", ["", "a", "a.b.c"], []),
        ("a.#", ["a", "a.b", "a.b.c"], ["", "ab", "b.a"]),
        ("#.c", ["c", "b.c", "a.b.c"], ["cc", "c.d"]),
        ("a.#.c", ["a.c", "a.b.c", "a.b.b.c"], ["a", "ac", "c"]),
        ("a.*.#", ["a.b", "a.b.c"], ["a"]),
        ("#.#", ["", "a", "a.b"], []),
        ("a+b.*", ["a+b.c"], ["aab.c", "ab.c"]),
    ],
)
def test_topics_match_as_amqp_says(pattern: str, matches: list[str], differs: list[str]) -> None:
    binding = Binding("e", pattern, topology.pattern_of("topic", pattern), "q")
    assert [key for key in matches if not topology.matches("topic", binding, key)] == []
    assert [key for key in differs if topology.matches("topic", binding, key)] == []


def test_bindings_of_one_process_route_for_all(connect: Connect) -> None:
    declaring, publishing = connect(), connect()
    exchange = kombu.Exchange("news", type="topic")
    queue = kombu.Queue("sport", exchange, routing_key="sport.#")
    queue(declaring.default_channel).declare()
    producer = kombu.Producer(publishing, auto_declare=False)
    producer.publish("goal", exchange="news", routing_key="sport.football")
    producer.publish("rain", exchange="news", routing_key="weather")
    bound = queue(declaring.default_channel)
    assert bound.get().decode() == "goal"
    assert bound.get() is None


def test_a_fanout_reaches_every_queue_in_one_statement(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = kombu.Exchange("all", type="fanout")
    connection = connect()
    queues = [kombu.Queue(f"all{number}", exchange)(connection.default_channel) for number in range(3)]
    for queue in queues:
        queue.declare()
    real, counts = Messages.publish, []

    def count(self: Messages, new: Sequence[NewMessage]) -> list[int | None]:
        counts.append(len(new))
        return real(self, new)

    monkeypatch.setattr(Messages, "publish", count)
    kombu.Producer(connection, exchange=exchange).publish("hear", routing_key="whatever")
    assert counts == [3]
    assert [queue.get().decode() for queue in queues] == ["hear"] * 3


def test_a_new_binding_counts_for_a_publisher_that_has_looked_before(connect: Connect) -> None:
    exchange = kombu.Exchange("late", type="fanout")
    publishing, declaring = connect(), connect()
    producer = kombu.Producer(publishing, exchange=exchange)
    producer.publish("unheard")
    queue = kombu.Queue("late", exchange)(declaring.default_channel)
    queue.declare()

    def heard() -> bool:
        producer.publish("heard")
        return queue.get() is not None

    wait_until(heard, 60, every_s=0.1)


def test_an_unbound_queue_gets_nothing(connect: Connect) -> None:
    connection = connect()
    exchange = kombu.Exchange("on-off", type="direct")
    queue = kombu.Queue("on-off", exchange, routing_key="k")(connection.default_channel)
    queue.declare()
    queue.unbind_from(exchange, routing_key="k")
    kombu.Producer(connection, exchange=exchange).publish("x", routing_key="k")
    assert queue.get() is None


def test_an_exchange_that_nobody_declared_can_be_checked_for(connect: Connect) -> None:
    channel = connect().default_channel
    with pytest.raises(ChannelError, match="no exchange 'nowhere'"):
        channel.exchange_declare("nowhere", passive=True)
    channel.exchange_declare("somewhere", "topic")
    channel.exchange_declare("somewhere", passive=True)


def test_a_type_of_exchange_that_is_not_supported_is_refused(connect: Connect) -> None:
    with pytest.raises(ChannelError, match="'headers' are not supported"):
        connect().default_channel.exchange_declare("h", "headers")


def test_a_deleted_exchange_routes_no_more_and_leaves_its_queues(connect: Connect) -> None:
    connection = connect()
    channel = connection.default_channel
    exchange = kombu.Exchange("gone", type="fanout")
    queue = kombu.Queue("stays", exchange)(channel)
    queue.declare()
    with pytest.raises(ChannelError, match="has bindings"):
        channel.exchange_delete("gone", if_unused=True)
    channel.exchange_delete("gone")
    kombu.Producer(connection, auto_declare=False).publish("x", exchange="gone")
    assert queue.get() is None


def test_the_manager_lists_the_bindings(connect: Connect) -> None:
    connection = connect()
    queue = kombu.Queue("listed", kombu.Exchange("lists", type="topic"), routing_key="a.*")
    queue(connection.default_channel).declare()
    expected = {"destination": "listed", "source": "lists", "routing_key": "a.*"}
    assert connect().get_manager().get_bindings() == [expected]


def test_a_publisher_notices_that_a_queue_was_deleted_and_made_again(connect: Connect) -> None:
    publishing, other = connect(), connect()
    queue = kombu.Queue("again", routing_key="again")
    publish(publishing, queue, "first")
    other.default_channel.queue_delete("again")
    queue(other.default_channel).declare()
    publish(publishing, queue, "second")
    received = queue(other.default_channel)
    assert received.get().decode() == "second"
    assert received.get() is None


def test_a_message_for_a_queue_that_does_not_exist_is_dropped_with_a_warning(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    kombu.Producer(connect()).publish("x", routing_key="no-such-queue")
    assert "the queue 'no-such-queue' was dropped" in caplog.text
