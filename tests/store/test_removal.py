"""An instance is drained and removed only if nothing uses it; listings that lack it are counted."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from atomic_celery.store.hosts import HostReport
from atomic_celery.store.records import Holder
from atomic_celery.store.store import Store
from tests.store.desk import Desk
from tests.store.test_hosts import host

STALE_MS = 15_000
BUSY = HostReport(slots=2, busy=0, queues=())


def drain(store: Store, instance: str = "vm", *host_ids: str, silent_ms: int | None = None) -> bool:
    return store.hosts.drain_unused(instance, host_ids, "above target", "controller", silent_ms=silent_ms)


def remove(store: Store, instance: str = "vm", *host_ids: str) -> bool:
    return store.hosts.begin_removal(instance, host_ids, silent_ms=STALE_MS)


def drained(store: Store) -> set[str]:
    return {drain.instance for drain in store.hosts.drains()}


def draining(store: Store) -> set[str]:
    return {host.id for host in store.hosts.list() if host.draining_ms is not None}


def test_an_instance_whose_hosts_hold_nothing_is_drained_with_all_of_them(store: Store) -> None:
    for name in ("h1", "h2"):
        store.hosts.register(host(name, provider_id="vm"))
    assert drain(store)
    assert (drained(store), draining(store)) == ({"vm"}, {"h1", "h2"})


def test_an_instance_is_not_drained_while_one_of_its_hosts_holds_a_message(desk: Desk) -> None:
    desk.publish()
    for name in ("h1", "h2"):
        desk.store.hosts.register(host(name, provider_id="vm"))
    assert desk.claim(Holder("h2", "b1", is_host=True))
    assert not drain(desk.store)
    assert not drained(desk.store)


def test_a_host_that_does_not_know_its_instance_is_drained_with_it(desk: Desk) -> None:
    store = desk.store
    store.hosts.register(host("h1"))
    assert drain(store, "vm", "h1")
    assert (drained(store), draining(store)) == ({"vm", "h1"}, {"h1"})
    desk.publish()
    assert not desk.claim(Holder("h1", "b1", is_host=True))


def test_such_a_host_keeps_its_instance_while_it_holds_a_message(desk: Desk) -> None:
    desk.publish()
    desk.store.hosts.register(host("h1"))
    assert desk.claim(Holder("h1", "b1", is_host=True))
    assert not drain(desk.store, "vm", "h1")


def test_a_host_that_has_just_reported_keeps_an_instance_that_was_taken_for_lost(desk: Desk) -> None:
    store = desk.store
    store.hosts.register(host("h1", provider_id="vm"))
    desk.pass_ms(STALE_MS - 1)
    assert not drain(store, silent_ms=STALE_MS)
    desk.pass_ms(1)
    assert drain(store, silent_ms=STALE_MS)


def test_an_instance_on_which_none_has_registered_is_drained_for_those_that_will(store: Store) -> None:
    assert drain(store, silent_ms=STALE_MS)
    assert store.hosts.register(host("h1", provider_id="vm")).draining


def test_a_removal_begins_when_the_hosts_have_left(store: Store) -> None:
    store.hosts.register(host("h1", provider_id="vm"))
    drain(store)
    assert not remove(store)
    store.hosts.leave("h1", "b1")
    assert remove(store)
    assert remove(store), "a removal whose answer was lost begins again"


def test_a_host_that_does_not_know_its_instance_takes_nothing_once_the_removal_has_begun(desk: Desk) -> None:
    """Somebody drained the instance by its name. The host is only silent, and may come back before it is gone."""
    store = desk.store
    store.hosts.register(host("h1"))
    store.hosts.drain("vm", "", "ann")
    desk.pass_ms(STALE_MS)
    desk.publish()
    assert remove(store, "vm", "h1")
    assert not desk.claim(Holder("h1", "b1", is_host=True))
    assert {row.instance: row.on_instance for row in store.hosts.drains()} == {"vm": None, "h1": "vm"}


def test_no_removal_begins_without_a_drain(store: Store) -> None:
    assert not remove(store)
    drain(store)
    store.hosts.undrain("vm")
    assert not remove(store)


def test_no_removal_begins_while_a_silent_host_holds_a_message(desk: Desk) -> None:
    store = desk.store
    store.hosts.register(host("h1", provider_id="vm"))
    desk.publish()
    assert desk.claim(Holder("h1", "b1", is_host=True))
    store.hosts.drain("vm", "", "somebody")
    desk.pass_ms(10 * 60_000)
    assert not remove(store), "its lease ran out, and nobody has reclaimed the message"
    desk.messages.reclaim()
    assert remove(store)


def test_a_drain_is_not_taken_back_once_the_removal_has_begun(store: Store) -> None:
    drain(store)
    assert remove(store)
    assert not store.hosts.undrain("vm")
    assert drained(store) == {"vm"}


def test_a_drain_is_forgotten_after_three_listings_in_a_row_without_its_instance(store: Store) -> None:
    drain(store)
    drain(store, "other")

    def count(listed: list[str], missing: list[str], forget_after: int) -> list[str]:
        return store.hosts.count_listing(listed, missing, forget_after, silent_ms=STALE_MS)

    assert count(["other"], ["vm"], 3) == []
    assert count(["other"], ["vm"], 3) == []
    assert count(["other", "vm"], [], 3) == []
    assert count(["other"], ["vm"], 3) == []
    assert count(["other"], ["vm"], 3) == []
    assert drained(store) == {"vm", "other"}
    assert count(["other"], ["vm"], 3) == ["vm"]
    assert drained(store) == {"other"}
    assert not store.hosts.register(host("h1", provider_id="vm")).draining


def test_the_drain_of_a_host_that_does_not_know_its_instance_ends_with_the_instance_s(store: Store) -> None:
    store.hosts.register(host("h1"))
    drain(store, "vm", "h1")
    store.hosts.leave("h1", "b1")
    assert remove(store, "vm", "h1")
    assert {row.instance: row.removing_ms is None for row in store.hosts.drains()} == {"vm": False, "h1": False}
    assert not store.hosts.undrain("h1"), "it is being removed"
    for _ in range(2):
        assert store.hosts.count_listing([], ["vm"], 3, silent_ms=STALE_MS) == []
    assert store.hosts.register(host("h1")).draining
    store.hosts.leave("h1", "b1")
    assert store.hosts.count_listing([], ["vm"], 3, silent_ms=STALE_MS) == ["vm"]
    assert not drained(store)
    assert not store.hosts.register(host("h1")).draining


@pytest.mark.parametrize("lifted", ["vm", "h1"])
def test_the_drain_of_such_a_host_and_its_instance_s_are_taken_back_together(store: Store, lifted: str) -> None:
    store.hosts.register(host("h1"))
    store.hosts.drain("h1", "bad disk", "ann")
    store.hosts.drain_together("vm", ["h1"], "", "controller")
    assert {row.instance: row.asked_by for row in store.hosts.drains()} == {"h1": "ann", "vm": "controller"}
    assert store.hosts.undrain(lifted)
    assert (drained(store), draining(store)) == (set(), set())


def test_no_such_drain_is_forgotten_while_its_host_reports(desk: Desk) -> None:
    hosts = desk.store.hosts
    hosts.register(host("h1"))
    hosts.drain_together("vm", ["h1"], "", "controller")
    for _ in range(6):
        hosts.report("h1", "b1", BUSY)
        desk.pass_ms(5000)
        assert hosts.count_listing([], ["vm"], 3, silent_ms=STALE_MS) == []
    desk.pass_ms(STALE_MS)
    counts = [hosts.count_listing([], ["vm"], 3, silent_ms=STALE_MS) for _ in range(3)]
    assert (counts, drained(desk.store), draining(desk.store)) == ([[], [], ["vm"]], set(), set())


def test_a_drain_that_is_forgotten_lets_the_hosts_that_are_there_serve(desk: Desk) -> None:
    store = desk.store
    store.hosts.register(host("h1", provider_id="vm"))
    drain(store)
    desk.pass_ms(STALE_MS)
    assert store.hosts.count_listing([], ["vm"], 1, silent_ms=STALE_MS) == ["vm"]
    assert not draining(store)


@pytest.mark.parametrize("names_it", [True, False])
def test_no_drain_is_forgotten_while_a_host_on_its_instance_reports(desk: Desk, names_it: bool) -> None:
    """The provider does not list it any more, but its machine still shuts down."""
    hosts = desk.store.hosts
    hosts.register(host("h1", provider_id="vm" if names_it else None))
    instance = hosts.drain("h1", "", "controller").instance
    for _ in range(10):
        assert hosts.count_listing([], [instance], 3, silent_ms=STALE_MS) == []
        desk.pass_ms(5000)
        hosts.report("h1", "b1", BUSY)
    hosts.leave("h1", "b1")
    counts = [hosts.count_listing([], [instance], 3, silent_ms=STALE_MS) for _ in range(3)]
    assert counts == [[], [], [instance]]


def test_an_idle_host_says_since_when(desk: Desk) -> None:
    store = desk.store
    store.hosts.register(host("h1"))
    [seen] = store.hosts.list()
    assert seen.idle_since_ms is None
    store.hosts.report("h1", "b1", HostReport(slots=2, busy=0, queues=(), idle_ms=4000))
    [seen] = store.hosts.list()
    assert seen.idle_since_ms == desk.now_ms - 4000
    store.hosts.report("h1", "b1", HostReport(slots=2, busy=1, queues=(), idle_ms=None))
    [seen] = store.hosts.list()
    assert seen.idle_since_ms is None


@pytest.mark.parametrize("first", ["claim", "drain"])
def test_of_a_claim_and_a_drain_at_the_same_moment_one_comes_first(postgres_desk: Desk, first: str) -> None:
    """Whatever the order: never both a drained instance and a message that it has just claimed."""
    desk, store = postgres_desk, postgres_desk.store
    store.hosts.register(host("h1", provider_id="vm"))
    for _ in range(40):
        desk.publish()
        start = threading.Barrier(2)

        def claim(start: threading.Barrier = start) -> int:
            start.wait(60)
            return len(desk.claim(Holder("h1", "b1", is_host=True)))

        def ask(start: threading.Barrier = start) -> bool:
            start.wait(60)
            return drain(store)

        with ThreadPoolExecutor(2) as threads:
            order = (claim, ask) if first == "claim" else (ask, claim)
            futures = {call.__name__: threads.submit(call) for call in order}
            claimed, asked = futures["claim"].result(30), futures["ask"].result(30)
        assert bool(claimed) != asked
        store.hosts.undrain("vm")
        held = [(view.id, view.fence) for view in store.reads.messages() if view.state == "running"]
        desk.messages.complete(held)
        desk.messages.delete([view.id for view in store.reads.messages()])
