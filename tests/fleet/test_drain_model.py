"""Any order of claims, drains, removals and restarts leaves no lease with a host whose instance is gone.

The model knows two instances, the hosts that may be on them, and what each holds. Whatever the store answers is
compared with what the model says it must, and after each step no removed instance may hold anything.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from atomic_celery.store.hosts import HostReport
from atomic_celery.store.records import Holder
from tests.store.any_order import Machine, run_on_postgresql, run_on_sqlite
from tests.store.desk import LEASE_MS, Desk
from tests.store.test_hosts import host

STALE_MS = 15_000
LISTINGS = 3
INSTANCES = {"vm-1": ("h1", "h2"), "vm-2": ("h3",)}
NAMELESS = "h3"
"""A host that does not know its instance; the provider does."""
HOSTS = [name for names in INSTANCES.values() for name in names]
PLACES = st.sampled_from(sorted(INSTANCES))
WHO = st.sampled_from(HOSTS)


def instance_of(name: str) -> str:
    return next(instance for instance, names in INSTANCES.items() if name in names)


def nameless_of(instance: str) -> list[str]:
    return [name for name in INSTANCES[instance] if name == NAMELESS]


class Fleet(Machine):
    """Hosts, an operator, and a controller at one store."""

    max_crashes = 1000

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(self.store)
        self.reported: dict[str, int] = {}
        self.drained: set[str] = set()
        """Instances, and the host that does not know where it is."""
        self.tied = False
        """Whether the drain of that host ends with its instance's."""
        self.removing: set[str] = set()
        self.gone: set[str] = set()
        self.missed = dict.fromkeys(INSTANCES, 0)
        """How many listings in a row lacked each instance, while it was drained."""
        self.held: dict[str, list[tuple[int, int, int]]] = {name: [] for name in HOSTS}
        """What each host holds: id, fence, until when."""

    # What hosts do

    @rule(name=WHO)
    def register(self, name: str) -> None:
        if instance_of(name) in self.gone:
            return
        provider_id = None if name == NAMELESS else instance_of(name)
        state = self.store.hosts.register(host(name, provider_id=provider_id))
        assert state.draining == self._is_drained(name)
        self.reported[name] = self.desk.now_ms

    @rule(name=WHO)
    def report(self, name: str) -> None:
        if instance_of(name) in self.gone:
            return
        state = self.store.hosts.report(name, "b1", HostReport(slots=2, busy=0, queues=()))
        assert state.known == (name in self.reported)
        if state.known:
            assert state.draining == self._is_drained(name)
            self.reported[name] = self.desk.now_ms

    @rule(name=WHO, limit=st.integers(1, 3))
    def claim(self, name: str, limit: int) -> None:
        """A host of a removed instance may still try: its packets may be on their way."""
        self.desk.publish()
        claimed = self.desk.claim(Holder(name, "b1", is_host=True), limit)
        assert bool(claimed) == (name in self.reported and not self._is_drained(name))
        self.held[name] += [(one.id, one.fence, self.desk.now_ms + LEASE_MS) for one in claimed]

    @rule(name=WHO)
    def complete(self, name: str) -> None:
        if self.held[name]:
            message_id, fence, until_ms = self.held[name].pop()
            settled = self.desk.messages.complete([(message_id, fence)])
            assert (settled == {message_id}) == (until_ms > self.desk.now_ms)
            if not settled:
                self.held[name].append((message_id, fence, until_ms))

    @rule(name=WHO)
    def leave(self, name: str) -> None:
        if not self.held[name]:
            self.store.hosts.leave(name, "b1")
            self.reported.pop(name, None)

    # What time and other hosts do

    @rule(by_ms=st.sampled_from([1000, STALE_MS, LEASE_MS]))
    def pass_ms(self, by_ms: int) -> None:
        self.desk.pass_ms(by_ms)

    @rule()
    def reclaim(self) -> None:
        self.desk.pass_ms(1001)  # it is done at most once a second
        self.desk.messages.reclaim()
        for name, held in self.held.items():
            self.held[name] = [one for one in held if one[2] > self.desk.now_ms]

    # What the controller and an operator do

    @rule(instance=PLACES, silent=st.booleans())
    def drain_unused(self, instance: str, silent: bool) -> None:
        silent_ms = STALE_MS if silent else None
        done = self.store.hosts.drain_unused(instance, nameless_of(instance), "", "controller", silent_ms=silent_ms)
        fresh = any(self._fresh(name) for name in INSTANCES[instance])
        assert done == (not self._holds(instance) and not (silent and fresh))
        if done:
            self._drain_together(instance)

    @rule(instance=PLACES)
    def drain_together(self, instance: str) -> None:
        self.store.hosts.drain_together(instance, nameless_of(instance), "", "controller")
        self._drain_together(instance)

    @rule(name=st.sampled_from([*INSTANCES, *HOSTS]))
    def drain(self, name: str) -> None:
        """Do as an operator, who does not know where the host is that does not know it either."""
        if name in INSTANCES or name == NAMELESS:
            self.drained.add(name)
        elif name in self.reported:
            self.drained.add(instance_of(name))
        else:
            return
        self.store.hosts.drain(name, "", "somebody")

    @rule(name=st.sampled_from([*INSTANCES, NAMELESS]))
    def undrain(self, name: str) -> None:
        together = {NAMELESS, instance_of(NAMELESS)}
        lifted = (together if self.tied and name in together else {name}) & self.drained
        removing = any(each in self.removing for each in lifted)
        assert self.store.hosts.undrain(name) == (bool(lifted) and not removing)
        if not removing:
            self._forget(lifted)

    @rule(instance=PLACES)
    def list_without(self, instance: str) -> None:
        forgotten = self.store.hosts.count_listing([], [instance], LISTINGS, silent_ms=STALE_MS)
        fresh = any(self._fresh(name) for name in INSTANCES[instance] if name != NAMELESS or self.tied)
        self.missed[instance] = self.missed[instance] + 1 if instance in self.drained and not fresh else 0
        assert forgotten == ([instance] if self.missed[instance] == LISTINGS else [])
        if forgotten:
            self.removing.discard(instance)
            self.gone.discard(instance)  # whatever has that name from now on is another one
            self._forget({instance, *(nameless_of(instance) if self.tied else ())})

    @rule(instance=PLACES)
    def remove(self, instance: str) -> None:
        begun = self.store.hosts.begin_removal(instance, nameless_of(instance), silent_ms=STALE_MS)
        fresh = any(self._fresh(name) for name in INSTANCES[instance])
        assert begun == (instance in self.drained and not fresh and not self._holds(instance))
        if begun:
            self._drain_together(instance)
            self.removing.add(instance)
            self.gone.add(instance)

    @invariant()
    def nothing_is_held_where_an_instance_is_gone(self) -> None:
        holders = self.store.loads.holders()
        for instance in self.gone:
            assert not holders & set(INSTANCES[instance])
            assert not self._holds(instance)

    def _is_drained(self, name: str) -> bool:
        return (name if name == NAMELESS else instance_of(name)) in self.drained

    def _drain_together(self, instance: str) -> None:
        self.drained |= {instance, *nameless_of(instance)}
        self.tied = self.tied or instance == instance_of(NAMELESS)

    def _forget(self, names: set[str]) -> None:
        self.drained -= names
        self.tied = self.tied and NAMELESS not in names
        self.missed |= dict.fromkeys(names & INSTANCES.keys(), 0)

    def _fresh(self, name: str) -> bool:
        return name in self.reported and self.reported[name] > self.desk.now_ms - STALE_MS

    def _holds(self, instance: str) -> bool:
        return any(self.held[name] for name in INSTANCES[instance])


@pytest.mark.timeout(600)  # a failure is shown as short as it can be made, which takes its time
def test_any_order_of_events_on_sqlite(tmp_path: Path) -> None:
    run_on_sqlite(Fleet, tmp_path)


@pytest.mark.timeout(600)  # a failure is shown as short as it can be made, which takes its time
def test_any_order_of_events_on_postgresql(postgres_url: str) -> None:
    run_on_postgresql(Fleet, postgres_url)
