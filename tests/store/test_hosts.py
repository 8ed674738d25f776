"""Hosts register, report and leave; a drain stops their claims before they hear of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import pytest

from atomic_celery.store import hosts
from atomic_celery.store.hosts import Drain, Host, HostReport, HostState, NewHost
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import Claimed, Holder, Lane, NewMessage
from atomic_celery.store.store import Store
from tests.support.hosts import new_host
from tests.support.waiting import wait_until

NOW_MS = 1_700_000_000_000
SERVES = HostState(draining=False, known=True)
DRAINS = HostState(draining=True, known=True)
UNKNOWN = HostState(draining=False, known=False)
REPORT = HostReport(slots=4, busy=3, queues=("q", "ü"), poll_failures=2, last_error="no")


def host(host_id: str = "h1", *, boot: str = "b1", provider_id: str | None = None) -> NewHost:
    labels = {"zone": "a", "ü": "ö"}
    facts = {"pid": 42, "pid_started": "4711", "slots": 2, "busy": 1, "queues": ("q",), "versions": {"python": "3.13"}}
    return new_host(host_id, boot, provider_id=provider_id, labels=labels, **facts)


def test_a_host_is_listed_as_it_registered(store: Store) -> None:
    store.at(NOW_MS)
    assert store.hosts.register(host(provider_id="i-1")) == SERVES
    [listed] = store.hosts.list()
    assert listed == Host(
        **{**asdict(host(provider_id="i-1")), "queues": ["q"]},
        started_ms=NOW_MS,
        reported_ms=NOW_MS,
        poll_failures=0,
        last_error=None,
        draining_ms=None,
    )


def test_a_report_says_what_a_host_does_and_nothing_else_of_it_changes(store: Store) -> None:
    store.at(NOW_MS)
    store.hosts.register(host())
    [before] = store.hosts.list()
    store.at(NOW_MS + 5_000)
    assert store.hosts.report("h1", "b1", REPORT) == SERVES
    assert store.hosts.list() == [
        replace(
            before,
            reported_ms=NOW_MS + 5_000,
            slots=4,
            busy=3,
            queues=["q", "ü"],
            poll_failures=2,
            last_error="no",
        )
    ]


def test_another_boot_takes_over_the_row_and_the_old_one_is_unknown(store: Store) -> None:
    store.hosts.register(host())
    store.hosts.report("h1", "b1", REPORT)
    store.hosts.register(host(boot="b2"))
    assert store.hosts.report("h1", "b1", REPORT) == UNKNOWN
    assert store.hosts.leave("h1", "b1") is False
    [listed] = store.hosts.list()
    assert (listed.boot, listed.poll_failures, listed.last_error, listed.busy) == ("b2", 0, None, 1)


def test_who_leaves_is_off_the_list(store: Store) -> None:
    store.hosts.register(host())
    assert store.hosts.leave("h1", "b1") is True
    assert store.hosts.leave("h1", "b1") is False
    assert store.hosts.list() == []
    assert store.hosts.report("h1", "b1", REPORT) == UNKNOWN


def test_hosts_are_found_by_the_boot_of_their_machine(store: Store) -> None:
    for machine, boot in [("m", "mb"), ("m", "another"), ("another", "mb"), ("", "")]:
        store.hosts.register(replace(host(f"{machine} {boot}"), machine=machine, machine_boot=boot))
    assert [found.id for found in store.hosts.same_machine("m", "mb")] == ["m mb"]
    assert store.hosts.same_machine("", "") == []


def test_a_host_that_was_silent_for_a_day_is_forgotten_unless_it_holds_something(store: Store, claim: Claim) -> None:
    store.at(NOW_MS)
    for name in ("silent", "holding"):
        store.hosts.register(host(name))
    assert claim("holding")
    store.at(NOW_MS + hosts.FORGOTTEN_MS + 1)
    store.hosts.register(host("new"))
    assert [listed.id for listed in store.hosts.list()] == ["holding", "new"]


@pytest.mark.parametrize("asked", ["h1", "i-1"])
def test_a_drain_concerns_every_host_of_the_instance(store: Store, claim: Claim, asked: str) -> None:
    store.at(NOW_MS)
    store.hosts.register(host("h1", provider_id="i-1"))
    store.hosts.register(host("h2", provider_id="i-1"))
    store.hosts.register(host("h3", provider_id="i-3"))

    drained = store.hosts.drain(asked, "maintenance", "me")
    assert drained == hosts.Drained("i-1", ("h1", "h2"), new=True)
    assert store.hosts.drains() == [Drain("i-1", "maintenance", "me", NOW_MS, 0)]
    assert [store.hosts.report(f"h{n}", "b1", REPORT) for n in (1, 2, 3)] == [DRAINS, DRAINS, SERVES]
    assert [bool(claim(f"h{n}")) for n in (1, 2, 3)] == [False, False, True]


def test_the_first_reason_of_a_drain_stays(store: Store) -> None:
    store.hosts.register(host())
    store.hosts.drain("h1", "first", "me")
    again = store.hosts.drain("h1", "second", "you")
    assert (again.instance, again.new) == ("h1", False)
    assert [drain.reason for drain in store.hosts.drains()] == ["first"]


def test_a_drain_outlives_its_host_and_meets_the_next_one_on_the_instance(store: Store, claim: Claim) -> None:
    store.hosts.register(host("h1", provider_id="i-1"))
    store.hosts.drain("h1", "scale down", "controller")
    store.hosts.leave("h1", "b1")
    assert store.hosts.register(host("new", provider_id="i-1")) == DRAINS
    assert claim("new") == []
    assert store.hosts.register(host("h1", boot="b2")) == SERVES


def test_a_drain_may_be_asked_before_anybody_registers(store: Store, claim: Claim) -> None:
    assert store.hosts.drain("i-1", "boot failed", "controller").hosts == ()
    assert store.hosts.register(host(provider_id="i-1")) == DRAINS
    assert claim("h1") == []


@pytest.mark.parametrize("asked", ["h1", "i-1"])
def test_a_drain_that_is_taken_back_lets_hosts_claim_again(store: Store, claim: Claim, asked: str) -> None:
    store.hosts.register(host("h1", provider_id="i-1"))
    store.hosts.drain("i-1", "maintenance", "me")
    assert store.hosts.undrain(asked) is True
    assert store.hosts.undrain(asked) is False
    assert store.hosts.drains() == []
    assert store.hosts.report("h1", "b1", REPORT) == SERVES
    assert claim("h1")


def test_taking_one_of_two_drains_back_is_not_enough(store: Store, claim: Claim) -> None:
    store.hosts.drain("h1", "before it had an instance", "me")
    store.hosts.register(host("h1", provider_id="i-1"))
    store.hosts.drain("i-1", "maintenance", "me")
    assert store.hosts.undrain("i-1") is True
    assert claim("h1") == []
    assert store.hosts.undrain("h1") is True
    assert claim("h1")


def test_a_host_may_drain_by_its_own_will(store: Store, claim: Claim) -> None:
    store.at(NOW_MS)
    store.hosts.register(host())
    leaving = replace(REPORT, draining=True)
    assert store.hosts.report("h1", "b1", leaving) == DRAINS
    store.at(NOW_MS + 5_000)
    assert store.hosts.report("h1", "b1", leaving) == DRAINS
    assert [listed.draining_ms for listed in store.hosts.list()] == [NOW_MS]
    assert claim("h1") == []
    assert store.hosts.register(host(boot="b2")) == SERVES


def test_only_an_idle_host_is_drained_if_idle(store: Store, claim: Claim) -> None:
    store.hosts.register(host())
    [held] = claim("h1")
    assert store.hosts.drain_if_idle("h1", "scale down", "controller") is False
    assert store.hosts.drains() == []
    store.messages.complete([held.held])
    assert store.hosts.drain_if_idle("h1", "scale down", "controller") is True
    assert [drain.instance for drain in store.hosts.drains()] == ["h1"]
    assert claim("h1") == []


def test_a_message_under_a_lapsed_lease_still_keeps_its_host(store: Store, claim: Claim) -> None:
    store.at(NOW_MS)
    store.hosts.register(host())
    [held] = claim("h1")
    store.at(NOW_MS + 60_000)
    assert store.hosts.drain_if_idle("h1", "scale down", "controller") is False
    store.messages.release_holder("h1", "b1", "it died")
    assert store.hosts.drain_if_idle("h1", "scale down", "controller") is True
    assert held.fence == 1


def test_an_instance_is_idle_only_if_all_its_hosts_are(store: Store, claim: Claim) -> None:
    for name in ("h1", "h2"):
        store.hosts.register(host(name, provider_id="i-1"))
    [held] = claim("h2")
    assert store.hosts.drain_if_idle("h1", "scale down", "controller") is False
    store.messages.complete([held.held])
    assert store.hosts.drain_if_idle("h1", "scale down", "controller") is True
    assert [drain.instance for drain in store.hosts.drains()] == ["i-1"]


def test_who_is_not_listed_is_not_drained_as_idle(store: Store) -> None:
    assert store.hosts.drain_if_idle("nobody", "scale down", "controller") is False
    assert store.hosts.drains() == []


def test_a_drain_in_an_undone_transaction_never_was(store: Store, claim: Claim) -> None:
    store.hosts.register(host())

    def drain_and_fail() -> None:
        with store.transaction():
            store.hosts.drain("h1", "maintenance", "me")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        drain_and_fail()
    assert store.hosts.drains() == []
    assert claim("h1")


def test_nothing_is_claimed_once_a_drain_is_committed(store: Store, claim: Claim) -> None:
    store.hosts.register(host())
    over = threading.Event()
    claimed: list[Claimed] = []

    def claim_all_the_time() -> None:
        while not over.wait(0.005):  # or nobody else would ever get SQLite's write lock
            claimed.extend(claim("h1"))

    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(claim_all_the_time) for _ in range(2)]
        try:
            wait_until(lambda: len(claimed) > 20)
            store.hosts.drain("h1", "maintenance", "me")
            committed = running_messages(store)
            tried = len(claimed)
            assert [claim("h1") for _ in range(20)] == [[]] * 20
        finally:
            over.set()
    assert [thread.exception() for thread in running] == [None, None]
    assert running_messages(store) == committed >= tried


def running_messages(store: Store) -> int:
    return sum(depth.running for depth in store.reads.depths())


def test_asking_if_idle_and_claiming_do_not_cross(store: Store, claim: Claim) -> None:
    outcomes = set()
    with ThreadPoolExecutor(2) as threads:
        for number in range(60):
            name, together = f"h{number}", threading.Barrier(2)
            store.hosts.register(host(name))

            def drain(name: str = name, together: threading.Barrier = together) -> bool:
                together.wait()
                return store.hosts.drain_if_idle(name, "scale down", "controller")

            asked = threads.submit(drain)
            together.wait()
            claimed = bool(claim(name))
            outcomes.add((asked.result(), claimed))
    assert outcomes <= {(True, False), (False, True)}


def test_a_host_that_registers_while_its_instance_is_drained_drains(store: Store) -> None:
    with ThreadPoolExecutor(2) as threads:
        for number in range(60):
            instance, together = f"i-{number}", threading.Barrier(2)

            def register(
                number: int = number, instance: str = instance, together: threading.Barrier = together
            ) -> None:
                together.wait()
                store.hosts.register(host(f"h{number}", provider_id=instance))

            registered = threads.submit(register)
            together.wait()
            store.hosts.drain(instance, "maintenance", "me")
            registered.result()
    assert all(listed.draining_ms is not None for listed in store.hosts.list())
    assert len(store.hosts.list()) == 60


def test_a_drain_waits_for_a_claim_that_has_begun(postgres_store: Store, claim: Claim) -> None:
    store = postgres_store
    store.hosts.register(host())
    with ThreadPoolExecutor(1) as threads:
        with store.transaction():
            [held] = claim("h1")
            idle = threads.submit(store.hosts.drain_if_idle, "h1", "scale down", "controller")
            wait_until(lambda: waits_for_a_lock(store), describe="nobody waits")
            assert not idle.done()
        assert idle.result() is False
    assert store.messages.complete([held.held]) == {held.id}


def waits_for_a_lock(store: Store) -> bool:
    """Whether some session on the database waits for a lock; asked of the server itself."""
    with store._database.own_connection() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)"
            " WHERE NOT l.granted AND a.datname = current_database()"
        )
        return bool(cursor.fetchone()[0])


def test_reports_move_no_index_entry(postgres_store: Store) -> None:
    store = postgres_store
    store.hosts.register(host())
    for busy in range(20):
        store.hosts.report("h1", "b1", replace(REPORT, busy=busy))
    with store._database.own_connection() as connection, connection.cursor() as cursor:

        def updates() -> tuple[int, int]:
            cursor.execute("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'atomic_host'")
            return tuple(cursor.fetchone())

        wait_until(lambda: updates()[0] == 20, describe=updates)
        assert updates() == (20, 20)


Claim = Callable[[str], list[Claimed]]


@pytest.fixture
def claim(request: pytest.FixtureRequest) -> Claim:
    """Claim one message of an endless queue as a host of the store that the test uses."""
    name = "postgres_store" if "postgres_store" in request.fixturenames else "store"
    store: Store = request.getfixturevalue(name)
    queue = store.queues.declare(QueueSpec(name="q"))
    message = NewMessage(queue_id=queue.id, payload="{}")

    def claim_one(host_id: str) -> list[Claimed]:
        store.messages.publish([message])
        return store.messages.claim(Holder(host_id, "b1", is_host=True), [Lane(queue.id, 0)], 1, 30_000)

    return claim_one
