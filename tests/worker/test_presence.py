"""A host that comes back recovers at once what it held when it died."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from atomic_celery import errors, identity
from atomic_celery.config import Settings
from atomic_celery.presence import Load, Presence
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import Holder, Lane, NewMessage
from atomic_celery.store.store import Store, open_store

DIE_HOLDING_A_MESSAGE = """
import os, sys
from pathlib import Path
from tests.worker.test_presence import appear, claim
store, presence = appear(sys.argv[1], Path(sys.argv[2]), name=sys.argv[3])
presence.register()
claim(store, presence)
os._exit(0)
"""


def appear(url: str, state_dir: Path, name: str) -> tuple[Store, Presence]:
    """Come up as the host called *name*, on this machine."""
    store = open_store(url, Settings())
    host = identity.take(state_dir, journal="journal", name=name)
    return store, Presence(store, host, Settings(), name, lambda: Load(slots=1))


def claim(store: Store, presence: Presence) -> None:
    """Hold one message."""
    queue = store.queues.declare(QueueSpec(name="q"))
    store.messages.publish([NewMessage(queue_id=queue.id, payload="{}")])
    holder = Holder(presence.identity.id, presence.identity.boot, is_host=True)
    assert len(store.messages.claim(holder, [Lane(queue.id, 0)], 1, 3_600_000)) == 1


@pytest.mark.parametrize("name", ["the same", "another"])
def test_a_host_recovers_what_a_dead_one_of_its_machine_held(database_url: str, tmp_path: Path, name: str) -> None:
    open_store(database_url, Settings()).schema.migrate()
    command = [sys.executable, "-c", DIE_HOLDING_A_MESSAGE, database_url, str(tmp_path), "the same"]
    subprocess.run(command, check=True)

    store, presence = appear(database_url, tmp_path, name)
    [crashed] = presence.register()
    assert (crashed.crashes, crashed.buried) == (1, False)
    assert [host.boot for host in store.hosts.list()] == [presence.identity.boot]
    assert presence.register() == []
    presence.identity.release()
    store.close()


def test_a_host_leaves_alone_what_a_live_one_holds(database_url: str, tmp_path: Path) -> None:
    open_store(database_url, Settings()).schema.migrate()
    store, living = appear(database_url, tmp_path, "living")
    living.register()
    claim(store, living)
    other_store, other = appear(database_url, tmp_path, "other")
    assert other.register() == []
    assert len(store.hosts.list()) == 2
    for each in (living, other):
        each.identity.release()
    store.close()
    other_store.close()


def test_what_could_not_be_reported_is_counted_later(sqlite_url: str, tmp_path: Path) -> None:
    store, presence = appear(sqlite_url, tmp_path, name="h")
    load = Load(slots=1)
    presence.load = lambda: load
    load.tally.add("succeeded", 5)
    with pytest.raises(errors.StoreError):
        presence.report()  # there are no tables yet
    store.schema.migrate()
    presence.register()
    load.tally.add("succeeded", 6)
    load.tally.add("released", 6)
    presence.report()
    presence.report()
    assert [(b.kind, b.count, b.total_ms) for b in store.traffic.read(0, 60)] == [("succeeded", 2, 11)]
    presence.identity.release()
    store.close()
