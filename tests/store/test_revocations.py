"""A revoked task id is remembered for its time, by the database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from atomic_celery.config import Settings
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import Holder, Lane, NewMessage
from atomic_celery.store.store import Store, open_store

NOW_MS = 1_700_000_000_000


def test_revoked_ids_are_told_from_others(store: Store) -> None:
    store.revocations.add(["a", "ü", "a"], keep_ms=60_000)
    assert store.revocations.contains(["a", "b", "ü"]) == {"a", "ü"}
    assert store.revocations.contains([]) == set()
    store.revocations.add([], keep_ms=1000)


def test_another_program_knows_them_too(store: Store, database_url: str) -> None:
    store.revocations.add(["a"], keep_ms=60_000)
    another = open_store(database_url, Settings())
    assert another.revocations.contains(["a"]) == {"a"}
    another.close()


def test_an_id_is_forgotten_after_its_time(store: Store) -> None:
    store.at(NOW_MS)
    store.revocations.add(["a"], keep_ms=1000)
    store.at(NOW_MS + 999)
    assert store.revocations.contains(["a"]) == {"a"}
    store.at(NOW_MS + 1000)
    assert store.revocations.contains(["a"]) == set()
    store.revocations.add(["a", "b"], keep_ms=1000)
    assert store.revocations.contains(["a", "b"]) == {"a", "b"}
    store.at(NOW_MS + 1500)
    store.revocations.add(["c"], keep_ms=1)
    assert store.revocations.contains(["a", "b", "c"]) == {"a", "b", "c"}


def test_revoking_again_lengthens_and_never_shortens(store: Store) -> None:
    store.at(NOW_MS)
    store.revocations.add(["a"], keep_ms=1000)
    store.revocations.add(["a"], keep_ms=10)
    store.at(NOW_MS + 900)
    store.revocations.add(["a"], keep_ms=1000)
    store.at(NOW_MS + 1800)
    assert store.revocations.contains(["a"]) == {"a"}


def test_many_may_revoke_at_once(store: Store) -> None:
    ids = [str(number) for number in range(50)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda turn: store.revocations.add(ids[turn:] + ids[:turn], 60_000), range(40)))
    assert store.revocations.contains(ids) == set(ids)


def test_a_claim_says_that_its_task_is_revoked(store: Store) -> None:
    queue = store.queues.declare(QueueSpec(name="q"))
    for task_id in ("a", "b"):
        store.messages.publish([NewMessage(queue_id=queue.id, payload="{}", task_id=task_id)])
    store.revocations.add(["b"], keep_ms=60_000)
    claimed = store.messages.claim(Holder("h", "b"), [Lane(queue.id, 0)], 2, 30_000)
    assert [(message.task_id, message.revoked) for message in claimed] == [("a", False), ("b", True)]


def test_stamps_are_remembered_beside_task_ids(store: Store) -> None:
    store.at(NOW_MS)
    store.revocations.revoke_stamps([("batch", "b=1"), ("user", "me")], keep_ms=1000)
    store.revocations.add(["stamped"], keep_ms=1000)
    assert store.revocations.stamps() == {("batch", "b=1"), ("user", "me")}
    store.at(NOW_MS + 1000)
    assert store.revocations.stamps() == set()
