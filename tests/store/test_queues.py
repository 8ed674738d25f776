"""Queues are declared once by everybody, found, filled, and gone when nobody needs them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from atomic_celery.config import Settings
from atomic_celery.errors import QueueInUse, QueueNotEmpty, QueueNotFound, StoreBusy
from atomic_celery.store import queues
from atomic_celery.store.hosts import HostReport
from atomic_celery.store.queues import Binding, Queue, QueueSpec
from atomic_celery.store.records import Holder, Lane, NewMessage
from atomic_celery.store.store import Store, open_store
from tests.support.hosts import new_host
from tests.support.postgres import Postgres

NOW_MS = 1_700_000_000_000
HOLDER = Holder("holder", "boot")
HOST = new_host("host", "boot", queues=("q",))


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.queues.declare(QueueSpec(name="q"))


def publish(store: Store, queue: Queue, count: int = 1, *, due_ms: int | None = None) -> None:
    message = NewMessage(queue_id=queue.id, payload="{}", due_ms=due_ms)
    store.messages.publish([message] * count)


def claim(store: Store, queue: Queue, count: int = 1, lease_ms: int = 30_000) -> list[tuple[int, int]]:
    claimed = store.messages.claim(HOLDER, [Lane(queue.id, 0)], count, lease_ms)
    return [message.held for message in claimed]


def test_a_queue_comes_back_as_it_was_declared(store: Store) -> None:
    spec = QueueSpec(
        name="q",
        exclusive_to="holder",
        auto_delete=True,
        expires_ms=1000,
        message_ttl_ms=2000,
        max_priority=9,
        dead_letter_exchange="dlx",
        dead_letter_routing_key="dead",
        arguments={"x-expires": 1000, "x-other": ["ü", None]},
    )
    declared = store.queues.declare(spec)
    assert store.queues.get("q") == declared
    assert declared == Queue(id=declared.id, **{name: getattr(spec, name) for name in spec.__slots__})
    assert store.queues.get("another") is None


def test_declaring_again_changes_nothing(store: Store, queue: Queue) -> None:
    assert store.queues.declare(QueueSpec(name="q", message_ttl_ms=5)) == queue


def test_programs_that_declare_at_once_get_the_same_queue(store: Store) -> None:
    with ThreadPoolExecutor(8) as threads:
        specs = [QueueSpec(name=f"q{number % 3}", expires_ms=60_000) for number in range(48)]
        declared = list(threads.map(store.queues.declare, specs))
    assert len({queue.id for queue in declared}) == len({queue.name for queue in declared}) == 3


def test_an_exclusive_queue_is_refused_to_others(store: Store) -> None:
    spec = QueueSpec(name="mine", exclusive_to="me")
    assert store.queues.declare(spec) == store.queues.declare(spec)
    for stranger in (None, "you"):
        with pytest.raises(QueueInUse, match="exclusive to me"):
            store.queues.declare(replace(spec, exclusive_to=stranger))


@pytest.mark.parametrize(
    ("spec", "perishable"),
    [
        (QueueSpec(name="q"), False),
        (QueueSpec(name="q", message_ttl_ms=1), False),
        (QueueSpec(name="q", expires_ms=1), True),
        (QueueSpec(name="q", auto_delete=True), True),
        (QueueSpec(name="q", exclusive_to="me"), True),
    ],
)
def test_which_queues_have_to_be_touched(store: Store, spec: QueueSpec, perishable: bool) -> None:
    assert store.queues.declare(spec).perishable is perishable


def test_deleting_a_queue_takes_all_its_messages_along(store: Store, queue: Queue) -> None:
    other = store.queues.declare(QueueSpec(name="other"))
    publish(store, other)
    publish(store, queue, 5)
    publish(store, queue, due_ms=store.now_ms() + 60_000)
    [held, crashed] = claim(store, queue, 2)
    store.messages.bury([crashed[0]], "on purpose")
    store.queues.bind("exchange", "key", "", "q")

    assert store.queues.delete("q") == 6
    assert store.queues.get("q") is None
    assert store.queues.bindings() == []
    assert store.messages.complete([held]) == frozenset()
    assert store.queues.delete("q") == 0
    assert store.queues.size("other") == 1
    with pytest.raises(QueueNotFound):
        publish(store, queue)


@pytest.mark.parametrize("state", ["ready", "delayed", "claimed", "dead"])
def test_a_queue_with_a_message_is_not_deleted_as_empty(store: Store, queue: Queue, state: str) -> None:
    publish(store, queue, due_ms=store.now_ms() + 60_000 if state == "delayed" else None)
    if state in ("claimed", "dead"):
        [(message_id, _)] = claim(store, queue)
        if state == "dead":
            store.messages.bury([message_id], "on purpose")
    with pytest.raises(QueueNotEmpty, match="'q' has messages"):
        store.queues.delete("q", if_empty=True)
    assert store.queues.get("q") == queue


def test_an_empty_and_unused_queue_is_deleted(store: Store, queue: Queue) -> None:
    assert store.queues.delete("q", if_unused=True, if_empty=True) == 0
    assert store.queues.get("q") is None


def test_a_queue_is_in_use_while_a_lease_on_its_message_lasts(store: Store, queue: Queue) -> None:
    store.at(NOW_MS)
    publish(store, queue)
    claim(store, queue, lease_ms=30_000)
    with pytest.raises(QueueInUse, match="'q' has consumers"):
        store.queues.delete("q", if_unused=True)
    store.at(NOW_MS + 30_001)
    assert store.queues.delete("q", if_unused=True) == 1


def test_a_queue_is_in_use_while_a_live_host_reports_to_consume_it(store: Store, queue: Queue) -> None:
    store.at(NOW_MS)
    store.hosts.register(HOST)
    with pytest.raises(QueueInUse):
        store.queues.delete("q", if_unused=True)
    store.hosts.report("host", "boot", HostReport(slots=2, busy=0, queues=("another", "qq")))
    store.at(NOW_MS + 1)
    assert store.queues.delete("q", if_unused=True) == 0

    store.queues.declare(QueueSpec(name="q"))
    store.hosts.register(HOST)
    store.at(NOW_MS + 15_002)
    assert store.queues.delete("q", if_unused=True) == 0


def test_a_queue_is_in_use_while_somebody_sleeps_over_it(postgres_store: Store) -> None:
    store = postgres_store
    queue = store.queues.declare(QueueSpec(name="q"))
    store.queues.arm("sleeper", [queue.id], 60_000)
    with pytest.raises(QueueInUse):
        store.queues.delete("q", if_unused=True)
    store.queues.disarm("sleeper")
    assert store.queues.delete("q", if_unused=True) == 0


def test_a_purge_removes_what_waits_and_nothing_else(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_CHUNK", 3)
    publish(store, queue, 10)
    publish(store, queue, due_ms=store.now_ms() + 60_000)
    [held, dead] = claim(store, queue, 2)
    store.messages.bury([dead[0]], "on purpose")

    assert store.queues.purge("q") == 9
    assert store.queues.size("q") == store.queues.purge("q") == 0
    assert store.messages.requeue([dead[0]]) == {dead[0]}
    assert store.messages.complete([held]) == {held[0]}


SLOW_DELETES = """
CREATE FUNCTION dawdle() RETURNS trigger AS $$ BEGIN PERFORM pg_sleep(1.5); RETURN OLD; END $$ LANGUAGE plpgsql;
CREATE TRIGGER dawdle BEFORE DELETE ON atomic_message FOR EACH ROW EXECUTE FUNCTION dawdle();
"""


def test_a_queue_is_deleted_however_long_it_takes(postgres_store: Store, postgres: Postgres, postgres_url: str) -> None:
    postgres.execute(SLOW_DELETES, database=urlsplit(postgres_url).path[1:])
    publish(postgres_store, postgres_store.queues.declare(QueueSpec(name="q")))
    hurried = open_store(postgres_url, Settings(statement_timeout_s=1))
    with pytest.raises(StoreBusy, match="statement timeout"):
        hurried.queues.purge("q")
    assert hurried.queues.delete("q") == 1
    hurried.close()


def test_purging_what_is_not_there_is_an_error(store: Store) -> None:
    with pytest.raises(QueueNotFound, match="no queue 'q'"):
        store.queues.purge("q")


def test_the_size_counts_ready_messages_up_to_a_bound(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, queue, 7)
    publish(store, queue, due_ms=store.now_ms() + 60_000)
    claim(store, queue, 2)
    assert (store.queues.size("q"), store.queues.size("another")) == (5, 0)
    monkeypatch.setattr(queues, "SIZE_BOUND", 3)
    assert store.queues.size("q") == 3


def expire(store: Store) -> list[str]:
    """Look twice, as a host does some seconds apart."""
    return store.queues.expire() or store.queues.expire()


def test_a_queue_expires_when_nobody_has_touched_it_for_its_time(store: Store) -> None:
    store.at(NOW_MS)
    mine = store.queues.declare(QueueSpec(name="mine", expires_ms=10_000))
    publish(store, mine, 2)
    store.queues.declare(QueueSpec(name="lasting"))

    store.at(NOW_MS + 9_999)
    assert store.queues.touch([mine.id]) == {mine.id}
    store.at(NOW_MS + 19_998)
    assert expire(store) == []
    store.at(NOW_MS + 19_999)
    assert expire(store) == ["mine"]
    assert store.queues.touch([mine.id]) == set()
    assert expire(store) == []
    assert store.queues.get("lasting") is not None
    assert store.queues.declare(QueueSpec(name="mine", expires_ms=10_000)).id != mine.id
    assert store.queues.size("mine") == 0


def test_a_queue_that_was_unused_for_a_moment_only_lives_on(store: Store) -> None:
    store.at(NOW_MS)
    queue = store.queues.declare(QueueSpec(name="q", expires_ms=10))
    store.at(NOW_MS + 10)
    assert store.queues.expire() == []
    store.queues.touch([queue.id])
    store.at(NOW_MS + 20)
    assert store.queues.expire() == []
    assert store.queues.expire() == ["q"]


def test_declaring_a_queue_again_counts_as_using_it(store: Store) -> None:
    store.at(NOW_MS)
    store.queues.declare(QueueSpec(name="q", expires_ms=10_000))
    store.at(NOW_MS + 9_000)
    store.queues.declare(QueueSpec(name="q", expires_ms=10_000))
    store.at(NOW_MS + 18_000)
    assert expire(store) == []


@pytest.mark.parametrize("spec", [QueueSpec(name="q", exclusive_to="the dead"), QueueSpec(name="q", auto_delete=True)])
def test_what_a_dead_consumer_left_behind_goes(store: Store, spec: QueueSpec) -> None:
    store.at(NOW_MS)
    queue = store.queues.declare(spec)
    publish(store, queue)
    store.at(NOW_MS + queues.ABANDONED_MS - 1)
    assert expire(store) == []
    store.at(NOW_MS + queues.ABANDONED_MS)
    assert expire(store) == ["q"]


def test_a_queue_over_which_somebody_sleeps_does_not_expire(postgres_store: Store) -> None:
    store = postgres_store
    store.at(NOW_MS)
    queue = store.queues.declare(QueueSpec(name="q", expires_ms=10))
    store.queues.arm("sleeper", [queue.id], 60_000)
    store.at(NOW_MS + 59_999)
    assert expire(store) == []
    store.at(NOW_MS + 60_000)
    assert expire(store) == ["q"]


def test_a_queue_whose_consumer_was_just_woken_does_not_expire(postgres_store: Store) -> None:
    store = postgres_store
    store.at(NOW_MS)
    queue = store.queues.declare(QueueSpec(name="q", expires_ms=10))
    for moment_ms in range(NOW_MS + 30_000, NOW_MS + 300_000, 30_000):
        store.queues.arm("sleeper", [queue.id], 60_000)
        store.at(moment_ms)
        assert store.queues.expire() == []
        publish(store, queue)
        assert store.queues.expire() == []
        store.queues.touch([queue.id])


def test_several_hosts_may_clear_up_at_once(store: Store, database_url: str) -> None:
    hosts = [open_store(database_url, Settings()) for _ in range(4)]
    store.at(NOW_MS)
    for number in range(20):
        publish(store, store.queues.declare(QueueSpec(name=f"q{number}", expires_ms=1)), 3)
    assert [host.queues.expire() for host in hosts] == [[]] * 4
    with ThreadPoolExecutor(4) as threads:
        expired = threads.map(lambda host: host.queues.expire(), hosts)
        assert sorted(name for names in expired for name in names) == sorted(f"q{number}" for number in range(20))
    for host in hosts:
        host.close()


def test_touching_nothing_and_strangers_is_harmless(store: Store) -> None:
    assert store.queues.touch([]) == store.queues.touch([4711]) == set()


def test_an_exchange_keeps_its_type(store: Store) -> None:
    assert store.queues.exchange_type("e") is None
    store.queues.declare_exchange("e", "topic")
    store.queues.declare_exchange("e", "topic")
    assert store.queues.exchange_type("e") == "topic"
    store.queues.declare_exchange("e", "fanout")
    assert store.queues.exchange_type("e") == "fanout"


def test_bindings_are_kept_once_and_found_by_exchange(store: Store, queue: Queue) -> None:
    store.queues.declare(QueueSpec(name="b"))
    for _ in range(2):
        store.queues.bind("e", "key", "pattern", "q")
    store.queues.bind("e", "key", "pattern", "b")
    store.queues.bind("f", "", "", "q")
    found = [Binding("e", "key", "pattern", "b"), Binding("e", "key", "pattern", "q")]
    assert store.queues.bindings("e") == found
    assert store.queues.bindings() == [*found, Binding("f", "", "", "q")]

    store.queues.unbind("e", "key", "pattern", "q")
    store.queues.unbind("e", "key", "pattern", "q")
    assert store.queues.bindings("e") == found[:1]
    with pytest.raises(QueueNotFound, match="no queue 'gone' to bind"):
        store.queues.bind("e", "key", "", "gone")


def test_an_exchange_goes_with_its_bindings(store: Store, queue: Queue) -> None:
    store.queues.declare_exchange("e", "direct")
    store.queues.bind("e", "key", "", "q")
    store.queues.delete_exchange("e")
    store.queues.delete_exchange("e")
    assert (store.queues.exchange_type("e"), store.queues.bindings()) == (None, [])
    assert store.queues.get("q") == queue


def test_a_ring_wakes_so_many_sleepers_and_each_once(postgres_store: Store) -> None:
    queues = postgres_store.queues
    [a, b] = [queues.declare(QueueSpec(name=name)).id for name in "ab"]
    for sleeper in range(5):
        queues.arm(f"sleeper {sleeper}", [a, b], 60_000)
        queues.arm(f"sleeper {sleeper}", [a], 60_000)
    assert queues.ring([4711]) == 0
    assert queues.ring([a], 2) == 2
    assert queues.ring([a], 10) == 3
    assert queues.ring([a], 10) == 0
    assert queues.ring([a, b], 10) == 5


def test_nobody_is_rung_who_woke_or_whose_time_is_over(postgres_store: Store) -> None:
    store = postgres_store
    queue = store.queues.declare(QueueSpec(name="q"))
    store.at(NOW_MS)
    store.queues.arm("awake", [queue.id], 60_000)
    store.queues.disarm("awake")
    store.queues.arm("dead", [queue.id], 1_000)
    store.at(NOW_MS + 1_000)
    assert store.queues.ring([queue.id], 10) == 0


def test_sqlite_needs_no_word_from_sleepers(sqlite_store: Store) -> None:
    queue = sqlite_store.queues.declare(QueueSpec(name="q"))
    sqlite_store.queues.arm("sleeper", [queue.id], 60_000)
    assert sqlite_store.queues.ring([queue.id]) == 0
    sqlite_store.queues.disarm("sleeper")
