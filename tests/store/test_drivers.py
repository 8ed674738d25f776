"""The same life of messages by every driver, with a session of one's own and behind a pooler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atomic_celery import errors
from atomic_celery.config import Settings
from atomic_celery.store.records import NewMessage, Renewal, Settlement
from atomic_celery.store.store import Store, open_store
from tests.store.desk import ALICE, BOB, LEASE_MS, Desk
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer

WAYS = [("postgresql+psycopg2", True), ("postgresql+psycopg2", False)]
WAYS += [("postgresql+psycopg", True), ("postgresql+psycopg", False)]


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}-{'session' if way[1] else 'pooled'}")
def way(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Store]:
    scheme, notify = request.param
    store = open_store(postgres_url.replace("postgresql", scheme), Settings(notify=notify))
    store.schema.migrate()
    yield store
    store.close()


def test_messages_live_the_same_life_by_every_driver(way: Store) -> None:
    live(Desk(way))


def test_errors_are_ours_by_every_driver(way: Store) -> None:
    prefixed = Store(way.url, Settings(prefix="nowhere", notify=way.settings.notify))
    with pytest.raises(errors.SchemaMismatch, match="atomic migrate"):
        prefixed.queues.get("celery")
    prefixed.close()


@pytest.mark.pooler
@pytest.mark.parametrize("scheme", ["postgresql+psycopg2", "postgresql+psycopg"])
def test_messages_live_the_same_life_behind_a_real_pooler(
    pooler: PgBouncer, own_postgres: PostgresServer, scheme: str
) -> None:
    url = own_postgres.create_database()
    store = open_store(pooler.url(url).replace("postgresql", scheme), Settings(notify=False))
    store.schema.migrate()
    live(Desk(store))
    store.close()


@pytest.mark.pooler
def test_whoever_forgot_to_say_that_there_is_a_pooler_is_told(pooler: PgBouncer, own_postgres: PostgresServer) -> None:
    url = pooler.url(own_postgres.create_database())
    desk = Desk(_migrated(url))
    others = [Desk(_migrated(url)) for _ in range(5)]

    def publish_by_turns() -> None:
        for _ in range(20):
            for each in (desk, *others):
                with each.store.transaction():
                    each.publish()

    with pytest.raises(errors.StoreError, match="atomic_notify = False"):
        publish_by_turns()
    for each in (desk, *others):
        each.store.close()


def live(desk: Desk) -> None:
    """Lead messages through every verb once."""
    odd = "100% %s 'quoted' \\ ü \u2028"
    first = desk.publish(odd, task_id="t1", priority=9)
    ids = desk.messages.publish(
        [desk.new("again", task_id="t1"), desk.new("second", task_id="t2"), desk.new("later", due_ms=desk.now_ms + 10)]
    )
    assert ids[0] is None
    with pytest.raises(errors.QueueNotFound):
        desk.messages.publish([NewMessage(desk.queue_id + 1, "nowhere")])
    one, two = desk.claim()
    assert [(one.id, one.payload), (two.id, two.payload)] == [(first, odd), (ids[1], "second")]
    renewal = desk.messages.renew(ALICE, [one.held, two.held, (999, 1)], LEASE_MS)
    assert renewal == Renewal(frozenset({one.id, two.id}), frozenset(), frozenset({999}))
    next_id = desk.messages.supersede(two.held, desk.new("next", task_id="t2", due_ms=desk.now_ms + 20))
    turn = desk.messages.turn(ALICE, Settlement([two.held], [], [(one.held, "killed")]), desk.lanes(), 9, LEASE_MS)
    assert turn.settled == {one.id, two.id}
    assert [report.id for report in turn.crashed] == [one.id]
    assert desk.messages.delay(turn.claimed[0].held, desk.now_ms + 30)
    desk.pass_ms(30)
    assert desk.messages.promote() == (3, None)
    put_off, later, next_one = desk.claim(BOB)
    assert (next_one.id, put_off.fence, put_off.crashes) == (next_id, 3, 1)
    assert desk.messages.release([later.held]) == {later.id}
    desk.pass_ms(LEASE_MS)
    assert {report.id for report in desk.messages.reclaim()} == {next_id, first}
    assert desk.messages.bury([first], "bad luck") == {first}
    assert desk.messages.requeue([first]) == {first}
    assert [message.id for message in desk.claim(ALICE, limit=1)] == [first]
    assert [report.id for report in desk.messages.release_holder(ALICE.id, ALICE.boot, "died")] == [first]
    assert {message.id for message in desk.messages.take([desk.queue_id], 2)} == {first, later.id}
    assert desk.messages.delete([next_one.id]) == {next_id}
    assert desk.store.reads.messages() == []


def _migrated(url: str) -> Store:
    store = open_store(url, Settings())
    store.schema.migrate()
    return store
