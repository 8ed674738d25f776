"""A worker's claims outlive its connections, and its settings reach every connection it makes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import kombu
import pytest
from celery import Celery

from atomic_celery.lease import LeaseKeeper
from atomic_celery.store import Holder, Store
from atomic_celery.transport import address, broker
from atomic_celery.transport.broker import Tenure
from tests.support.waiting import wait_until
from tests.transport.conftest import Connect
from tests.transport.inbox import publish
from tests.transport.test_hub import Looping

QUEUE = kombu.Queue("office", routing_key="office")


@pytest.fixture
def tenure(connect: Connect) -> Iterator[Tenure]:
    """What a worker leaves with its broker before it connects."""
    shared = broker.borrow(connect())
    holder = Holder("a worker", "its boot")
    keeper = LeaseKeeper(shared.store, holder, shared.settings)
    shared.tenure = tenure = Tenure(holder, keeper)
    yield tenure
    if tenure.claimer is not None:
        assert tenure.claimer.stop(60)
    shared.tenure = None
    broker.give_back(shared)


def consuming_on_a_loop(connection: kombu.Connection) -> Looping:
    looping = Looping(connection)
    consumer = kombu.Consumer(connection, [QUEUE], on_message=looping.messages.append)
    consumer.qos(prefetch_count=2)
    consumer.consume()
    return looping


def test_what_runs_when_a_connection_ends_is_settled_by_the_next_one(
    tenure: Tenure, connect: Connect, store: Store
) -> None:
    publish(connect(), QUEUE, "runs", "waits")
    first = consuming_on_a_loop(connect())
    first.turn_until(lambda: len(first.messages) == 2)
    runs, waits = first.messages
    tenure.started = lambda message_id: message_id == runs.properties["atomic"]["id"]
    first.connection.close()
    first.hub.close()
    wait_until(lambda: sorted(view.state for view in store.reads.messages()) == ["ready", "running"])
    second = consuming_on_a_loop(connect())
    second.turn_until(lambda: second.messages)
    assert second.messages[0].body == waits.body
    assert second.messages[0].properties["atomic"]["fence"] == 2
    runs.ack()
    second.messages[0].ack()
    wait_until(lambda: store.reads.messages() == [])
    second.connection.close()
    second.hub.close()


def test_the_appetite_of_the_pool_counts_instead_of_the_prefetch_count(
    tenure: Tenure, connect: Connect, store: Store
) -> None:
    appetite = [3]
    tenure.appetite = lambda: appetite[0] - len(tenure.keeper.held())
    publish(connect(), QUEUE, *range(8))
    looping = Looping(connect())
    consumer = kombu.Consumer(looping.connection, [QUEUE], on_message=looping.messages.append)
    consumer.consume()
    looping.turn_until(lambda: len(looping.messages) == 3)
    appetite[0] = 5
    assert tenure.claimer is not None
    tenure.claimer.wake()
    looping.turn_until(lambda: len(looping.messages) == 5)
    assert sorted(view.state for view in store.reads.messages()) == ["ready"] * 3 + ["running"] * 5
    looping.connection.close()
    looping.hub.close()


def test_events_are_published_by_the_claimers_thread(tenure: Tenure, connect: Connect, store: Store) -> None:
    looping = consuming_on_a_loop(connect())
    events = kombu.Exchange("celeryev", type="topic")
    heard = kombu.Queue("heard", events, routing_key="#")(connect().default_channel)
    heard.declare()
    seen: set[str] = set()
    real = store.messages.__class__.publish

    def spy(self: object, new: object) -> object:
        seen.add(threading.current_thread().name)
        return real(self, new)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.messages.__class__, "publish", spy)
        kombu.Producer(looping.connection, exchange=events).publish({"type": "worker-online"}, routing_key="worker")
        event = wait_until(heard.get)
    assert event.decode() == {"type": "worker-online"}
    assert seen == {"atomic-claims"}
    looping.connection.close()
    looping.hub.close()


def test_a_forked_child_is_nobodys_holder(tenure: Tenure, connect: Connect) -> None:
    shared = broker.borrow(connect())
    try:
        assert shared.tenure is tenure
        tenure.pid += 1
        assert shared.tenure is None
    finally:
        tenure.pid -= 1
        broker.give_back(shared)


def test_an_apps_settings_reach_its_connections_in_every_thread(url: str) -> None:
    with Celery("settings", broker=url, set_as_current=False) as app:
        app.conf.atomic_lease = 77
        found: list[float] = []

        def look() -> None:
            found.append(address.settings_of(app.connection_for_write()).lease_s)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join(60)
        assert found == [77]


def test_transport_options_say_settings_too(url: str) -> None:
    connection = kombu.Connection(url, transport_options={"atomic_prefix": "other", "max_retries": 3})
    assert address.settings_of(connection).prefix == "other"
