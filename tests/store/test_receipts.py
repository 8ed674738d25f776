"""A publisher that got no answer publishes again, and nothing is stored twice, whatever became of the first time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from atomic_celery import errors
from atomic_celery.config import Settings
from atomic_celery.store.messages import Messages
from atomic_celery.store.receipts import Receipts
from atomic_celery.store.records import NewMessage
from atomic_celery.store.store import Store, open_store
from tests.store.desk import Desk
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

PUBLISH = {1: b"EXECUTE atomic_messages_publish ", 3: b"EXECUTE atomic_messages_publish_many "}

pytestmark = pytest.mark.parametrize("count", PUBLISH, ids=["alone", "together"])


@pytest.fixture
def desk(postgres_desk: Desk) -> Desk:
    """A queue, and a worker's way to the database, which nothing disturbs."""
    postgres_desk.store.at(None)
    return postgres_desk


@pytest.fixture
def network(postgres_url: str) -> Iterator[Proxy]:
    """What is between the publisher and the database."""
    host, port = postgres_url.rpartition("@")[2].partition("/")[0].split(":")
    with Proxy(host, int(port)) as proxy:
        yield proxy


@pytest.fixture
def publisher(network: Proxy, postgres_url: str, desk: Desk) -> Iterator[Store]:
    """A publisher that has published before."""
    with closing(open_store(network.url(postgres_url), Settings())) as store:
        store.messages.publish(new(desk, 1, "before"))
        store.messages.publish(new(desk, 3, "before"))
        finish(desk, 4)
        yield store


def new(desk: Desk, count: int, name: str = "task") -> list[NewMessage]:
    return [desk.new(task_id=f"{name}-{count}-{number}") for number in range(count)]


def finish(desk: Desk, count: int) -> None:
    """Do all there is to do; it is *count* messages."""
    claimed = desk.claim()
    assert len(claimed) == count
    assert desk.messages.complete([message.held for message in claimed]) == {message.id for message in claimed}


def test_what_was_stored_and_is_done_is_not_stored_again(
    desk: Desk, network: Proxy, publisher: Store, count: int
) -> None:
    lost = network.drop_next_response(PUBLISH[count])
    with pytest.raises(errors.StoreUnavailable):
        publisher.messages.publish(new(desk, count))
    assert lost.wait(10)
    finish(desk, count)
    network.restore()

    assert publisher.messages.publish(new(desk, count)) == [None] * count
    assert desk.store.reads.messages() == []


def test_other_publications_in_between_wipe_no_evidence(
    desk: Desk, network: Proxy, publisher: Store, count: int
) -> None:
    network.drop_next_response(PUBLISH[count])
    with pytest.raises(errors.StoreUnavailable):
        publisher.messages.publish(new(desk, count))
    network.restore()
    publisher.messages.publish(new(desk, 1, "other"))
    finish(desk, count + 1)

    assert publisher.messages.publish(new(desk, count)) == [None] * count
    assert publisher.messages.publish(new(desk, 1, "another")) != [None]


def test_what_never_arrived_is_stored_the_second_time(desk: Desk, network: Proxy, publisher: Store, count: int) -> None:
    network.drop()
    with pytest.raises(errors.StoreUnavailable):
        publisher.messages.publish(new(desk, count))
    network.restore()

    assert None not in publisher.messages.publish(new(desk, count))
    finish(desk, count)


def test_two_answers_lost_one_after_the_other(desk: Desk, network: Proxy, publisher: Store, count: int) -> None:
    network.drop()
    with pytest.raises(errors.StoreUnavailable):
        publisher.messages.publish(new(desk, count))
    network.restore()
    network.drop_next_response(PUBLISH[count])
    with pytest.raises(errors.StoreUnavailable):
        publisher.messages.publish(new(desk, count))
    finish(desk, count)
    network.restore()

    assert publisher.messages.publish(new(desk, count)) == [None] * count


def test_what_arrives_after_it_was_sent_again_comes_too_late(
    desk: Desk, network: Proxy, publisher: Store, count: int
) -> None:
    network.hold(PUBLISH[count])
    with publisher.deadline(1.0), pytest.raises(errors.StoreUnavailable):
        publisher.messages.publish(new(desk, count))
    [late] = [link for link in network.links() if link.held]
    network.hold(b"nothing at all")
    assert None not in publisher.messages.publish(new(desk, count))
    finish(desk, count)

    network.restore()
    wait_until(lambda: late not in network.links(), 10)
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
    database = desk.store._database
    wait_until(lambda: database.run(database.statements.script("busy", sessions)).rows[0][0] == 1, 10)
    assert desk.store.reads.messages() == []


def test_a_signal_handler_that_publishes_in_between_loses_nothing(
    desk: Desk, publisher: Store, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert, interrupted = Messages._insert, []

    def interrupt(self: Messages, *args: object, **options: object) -> object:
        if not interrupted:
            interrupted.append(True)
            publisher.messages.publish(new(desk, 1, "handler"))
        return insert(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Messages, "_insert", interrupt)
    assert None not in publisher.messages.publish(new(desk, count))
    finish(desk, count + 1)


def test_an_error_that_is_none_of_the_network_leaves_the_evidence(
    desk: Desk, network: Proxy, publisher: Store, count: int
) -> None:
    network.drop_next_response(PUBLISH[count])
    with pytest.raises(errors.StoreUnavailable):
        publisher.messages.publish(new(desk, count))
    network.restore()
    finish(desk, count)
    with (
        pytest.raises(ValueError, match="broken"),
        publisher.messages._receipts.signing([message.task_id for message in new(desk, count)]),
    ):
        raise ValueError("broken")

    assert publisher.messages.publish(new(desk, count)) == [None] * count


def test_receipts_are_forgotten_after_a_while_and_publishing_goes_on(desk: Desk, publisher: Store, count: int) -> None:
    assert desk.messages.forget_publishers(3_600_000) == 0
    assert desk.messages.forget_publishers(-1) > 0
    assert None not in publisher.messages.publish(new(desk, count))


def test_a_forked_child_has_a_row_of_its_own(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    receipts = Receipts()
    with receipts.signing(["a"] * count) as parents:
        pass
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with receipts.signing(["b"] * count) as childs:
        pass
    assert childs.publisher != parents.publisher
    assert childs.fence == 1
