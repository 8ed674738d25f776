"""A publisher that got no answer publishes again, and nothing is stored twice, whatever became of the first time."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
def publisher(proxy: Proxy, postgres_url: str, desk: Desk) -> Iterator[Store]:
    """A publisher that has published before."""
    with closing(open_store(proxy.url(postgres_url), Settings())) as store:
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
    desk: Desk, proxy: Proxy, publisher: Store, count: int
) -> None:
    lost = proxy.drop_next_response(PUBLISH[count])
    with pytest.raises(errors.StoreUnavailable):
        publisher.messages.publish(new(desk, count))
    assert lost.wait(60)
    finish(desk, count)
    proxy.restore()

    assert publisher.messages.publish(new(desk, count)) == [None] * count
    assert desk.store.reads.messages() == []


def test_other_publications_in_between_wipe_no_evidence(desk: Desk, proxy: Proxy, publisher: Store, count: int) -> None:
    proxy.drop_next_response(PUBLISH[count])
    with pytest.raises(errors.StoreUnavailable):
        publisher.messages.publish(new(desk, count))
    proxy.restore()
    publisher.messages.publish(new(desk, 1, "other"))
    finish(desk, count + 1)

    assert publisher.messages.publish(new(desk, count)) == [None] * count
    assert publisher.messages.publish(new(desk, 1, "another")) != [None]


def test_what_never_arrived_is_stored_the_second_time(desk: Desk, proxy: Proxy, publisher: Store, count: int) -> None:
    proxy.drop()
    with pytest.raises(errors.StoreUnavailable):
        publisher.messages.publish(new(desk, count))
    proxy.restore()

    assert None not in publisher.messages.publish(new(desk, count))
    finish(desk, count)


def test_two_answers_lost_one_after_the_other(desk: Desk, proxy: Proxy, publisher: Store, count: int) -> None:
    proxy.drop()
    with pytest.raises(errors.StoreUnavailable):
        publisher.messages.publish(new(desk, count))
    proxy.restore()
    proxy.drop_next_response(PUBLISH[count])
    with pytest.raises(errors.StoreUnavailable):
        publisher.messages.publish(new(desk, count))
    finish(desk, count)
    proxy.restore()

    assert publisher.messages.publish(new(desk, count)) == [None] * count


def test_what_arrives_after_it_was_sent_again_comes_too_late(
    desk: Desk, proxy: Proxy, publisher: Store, count: int
) -> None:
    proxy.hold(PUBLISH[count])
    with publisher.deadline(1.0), pytest.raises(errors.StoreUnavailable):
        publisher.messages.publish(new(desk, count))
    [late] = [link for link in proxy.links() if link.held]
    proxy.hold(b"nothing at all")
    assert None not in publisher.messages.publish(new(desk, count))
    finish(desk, count)

    proxy.restore()
    wait_until(lambda: late not in proxy.links(), 60)
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
    database = desk.store._database
    wait_until(lambda: database.run(database.statements.script("busy", sessions)).rows[0][0] == 1, 60)
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
    desk: Desk, proxy: Proxy, publisher: Store, count: int
) -> None:
    proxy.drop_next_response(PUBLISH[count])
    with pytest.raises(errors.StoreUnavailable):
        publisher.messages.publish(new(desk, count))
    proxy.restore()
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
    receipts.give_back(parents)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with receipts.signing(["b"] * count) as childs:
        pass
    assert childs.publisher != parents.publisher
    assert childs.fence == 1


def test_threads_that_come_and_go_leave_no_more_rows_than_there_were_at_a_time(
    desk: Desk, publisher: Store, count: int
) -> None:
    def publish(name: str) -> None:
        with ThreadPoolExecutor(1) as short:  # a thread of its own for each publication
            assert None not in short.submit(publisher.messages.publish, new(desk, count, name)).result()

    with ThreadPoolExecutor(4) as clients:
        list(clients.map(publish, map(str, range(2000))))
    assert 1 <= rows(desk) <= 1 + 4  # the desk has published nothing; the publisher had one row before


def test_an_outage_leaves_no_rows_once_all_has_been_published_again(
    desk: Desk, proxy: Proxy, publisher: Store, count: int
) -> None:
    before = rows(desk)
    for number in range(3):
        proxy.drop_next_response(PUBLISH[count])
        with pytest.raises(errors.StoreUnavailable):
            publisher.messages.publish(new(desk, count, str(number)))
    assert rows(desk) == before + 2
    proxy.restore()
    for name in ("0", "1", "2"):
        assert publisher.messages.publish(new(desk, count, name)) == [None] * count
    for name in ("3", "4", "5"):
        assert None not in publisher.messages.publish(new(desk, count, name))
    assert rows(desk) == before + 2


def test_two_processes_thawed_from_one_image_lose_nothing(desk: Desk, publisher: Store, count: int) -> None:
    with closing(open_store(publisher.url.reveal(), Settings())) as copied:
        copied.messages._receipts = copy.deepcopy(publisher.messages._receipts)
        for number in range(3):
            for name, store in (("original", publisher), ("copied", copied)):
                assert None not in store.messages.publish(new(desk, count, f"{name}-{number}"))


def rows(desk: Desk) -> int:
    """Count the publishers that the database knows."""
    database = desk.store._database
    return int(
        database.run(database.statements.script("publishers", "SELECT count(*) FROM atomic_publisher")).rows[0][0]
    )
