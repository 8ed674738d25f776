"""Hosts as threads, a cloud that starts them, and a witness in the database: for the race between claims and removals.

The hosts do to the database what a worker does: register, claim, report, complete, leave; now and then one freezes with
a message in its hands, or dies. The witness knows nothing of this package: a trigger notes each claim of a host whose
instance was removed or drained, each drain and each removal looks for leases.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg2

from atomic_celery import errors
from atomic_celery.config import Settings
from atomic_celery.fleet import plan
from atomic_celery.fleet.controller import TERM, Controller
from atomic_celery.fleet.policy import Policy
from atomic_celery.fleet.provisioner import Instance, Permit
from atomic_celery.fleet.running import running
from atomic_celery.store.hosts import HostReport, NewHost
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import Claimed, Holder, Lane, NewMessage
from atomic_celery.store.store import Store, open_store
from tests.support.hosts import new_host
from tests.support.waiting import wait_until

HOSTS, SLOTS = 20, 2
LEASE_MS = 3000
SETTINGS = Settings(
    lease_s=3,
    renew_every_s=1,
    lease_margin_s=0.5,
    report_every_s=0.2,
    stale_after_s=1,
    statement_timeout_s=2.5,
    term_s=5,
)
AGGRESSIVE = Policy(
    max_hosts=HOSTS,
    workers_per_host=SLOTS,
    scale_up_queue_depth=0,
    scale_up_delay_ms=0,
    idle_drain_ms=100,
    boot_timeout_ms=3000,
)
QUICK_RULES = {
    "SILENT_REMOVED_AFTER_MS": 1500,
    "LOST_AFTER_MS": 1500,
    "SURE_AFTER_MS": 300,
    "LEFT_GRACE_MS": 300,
    "BOOT_RETRY_FIRST_MS": 200,
    "BOOT_RETRY_CEILING_MS": 1000,
}

WITNESS = """
CREATE TABLE removed (host text PRIMARY KEY);
CREATE TABLE violation (what text);
CREATE FUNCTION watch_claims() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM removed WHERE host = NEW.holder) THEN
        INSERT INTO violation VALUES ('claimed by a removed host: ' || NEW.holder);
    END IF;
    IF EXISTS (SELECT 1 FROM atomic_drain WHERE 'h-' || instance = NEW.holder) THEN
        INSERT INTO violation VALUES ('claimed by a drained host: ' || NEW.holder);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER watch BEFORE INSERT ON atomic_claim FOR EACH ROW EXECUTE FUNCTION watch_claims();
CREATE FUNCTION watch_drains() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO violation
    SELECT 'drained while it held a message: ' || holder FROM atomic_claim WHERE holder = 'h-' || NEW.instance;
    RETURN NEW;
END $$;
CREATE TRIGGER watch BEFORE INSERT ON atomic_drain FOR EACH ROW EXECUTE FUNCTION watch_drains();
"""


class Host(threading.Thread):
    """One host on one instance."""

    def __init__(self, race: Race, instance: str, boot: int) -> None:
        super().__init__(name=f"{instance}/{boot}", daemon=True)
        self._race, self._store, self._instance = race, race.store, instance
        self._holder = Holder(f"h-{instance}", f"boot-{boot}", is_host=True)
        self._random = random.Random(f"{race.seed}{instance}{boot}")
        self._held: list[Claimed] = []
        self.killed = threading.Event()
        self._idle_since_s = time.monotonic()

    def run(self) -> None:
        """Live until it drains, the race ends, or it dies."""
        if self._random.random() < 0.03:
            return  # never boots
        with suppress(errors.StoreError):
            self._live()

    def _live(self) -> None:
        draining = self._store.hosts.register(self._row()).draining
        reported_s = 0.0
        while not self._race.over.is_set() and not self.killed.is_set():
            fate = self._random.random()
            if fate < 0.0005:
                return  # dies with whatever it holds
            if fate < 0.001:
                time.sleep(self._random.uniform(0.5, 4.5))  # freezes, perhaps past its lease
            if not draining and len(self._held) < SLOTS:
                self._held += self._store.messages.claim(
                    self._holder, self._race.lanes, SLOTS - len(self._held), LEASE_MS
                )
            if self._held:
                time.sleep(self._random.uniform(0.002, 0.03))
                done = self._held.pop()
                self._race.completed.extend(self._store.messages.complete([(done.id, done.fence)]))
                self._idle_since_s = time.monotonic()
            elif draining:
                self._store.hosts.leave(self._holder.id, self._holder.boot)
                return
            else:
                time.sleep(0.01)
            if time.monotonic() - reported_s > 0.1:
                reported_s = time.monotonic()
                draining = self._report() or draining

    def _report(self) -> bool:
        idle_ms = None if self._held else round((time.monotonic() - self._idle_since_s) * 1000)
        report = HostReport(slots=SLOTS, busy=len(self._held), queues=("celery",), idle_ms=idle_ms)
        state = self._store.hosts.report(self._holder.id, self._holder.boot, report)
        return state.draining or (not state.known and self._store.hosts.register(self._row()).draining)

    def _row(self) -> NewHost:
        facts = {"provider_id": self._instance, "slots": SLOTS, "queues": ("celery",)}
        return new_host(self._holder.id, self._holder.boot, **facts)


class Race:
    """The store, the cloud, and the witness."""

    kind = "race"

    def __init__(self, url: str, seed: int) -> None:
        self.url, self.seed, self.over = url, seed, threading.Event()
        self.store: Store = open_store(f"atomic+{url}", SETTINGS)
        self._watching: Store = open_store(f"atomic+{url}", Settings())  # its own patience: it plays no part
        self.store.schema.migrate()
        queue_id = self.store.queues.declare(QueueSpec(name="celery")).id
        self.lanes = [Lane(queue_id, 0, 0)]
        self.completed: list[int] = []
        self.published = self.most = self.removals = 0
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)
        self._hosts: dict[str, list[Host]] = {}
        self._lock = threading.Lock()
        self._sql(WITNESS)

    # The cloud

    def list(self, permit: Permit) -> list[Instance]:
        permit.require("listing")
        with self._lock:
            names = list(self._hosts)
        if self._random.random() < 0.05 and names:
            names.remove(self._random.choice(names))  # a listing that misses one
        return [Instance(id=name, state="running") for name in names]

    def scale_to(self, target: int, permit: Permit, *, add: int) -> None:
        permit.require("adding")
        with self._lock:
            for _ in range(min(add, target - len(self._hosts))):
                name = f"vm-{next(self._numbers)}"
                self._hosts[name] = []
                self._boot(name)
            self.most = max(self.most, len(self._hosts))

    def drain(self, instance_id: str, permit: Permit) -> None:
        permit.require("removing")
        self._sql(
            "INSERT INTO removed VALUES (%(host)s) ON CONFLICT DO NOTHING;"
            "INSERT INTO violation SELECT 'removed while it held a message: ' || holder FROM atomic_claim"
            " WHERE holder = %(host)s",
            host=f"h-{instance_id}",
        )
        self.removals += 1
        if self._random.random() < 0.3:
            self._boot(instance_id)  # its worker is restarted while it goes
            permit.wait(self._random.uniform(0.02, 0.1))
        with self._lock:
            hosts = self._hosts.pop(instance_id, [])
        for host in hosts:
            host.killed.set()  # with the machine ends whatever runs on it
            host.join(60)

    def _boot(self, name: str) -> None:
        host = Host(self, name, len(self._hosts.get(name, ())))
        self._hosts.setdefault(name, []).append(host)
        host.start()

    # The work

    def publish_in_bursts(self, for_s: float) -> None:
        """Publish bursts, each some time after most of the last one is done: so hosts are idle in between."""
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s or not self.removals:
            count = self._random.randint(1, 150)
            self._watching.messages.publish([NewMessage(self.lanes[0].queue_id, "work")] * count)
            self.published += count
            wait_until(lambda: self._unfinished() < 20, 60, self.describe)
            time.sleep(self._random.uniform(0.0, 1.0))

    def wait_done(self) -> None:
        """Wait until everything is settled."""
        wait_until(lambda: self._unfinished() == 0, 60, self.describe)

    def _unfinished(self) -> int:
        self._watching.messages.reclaim()  # as any worker does: what the dead held
        return self.published - len(set(self.completed))

    def describe(self) -> str:
        """Return the state of everything, for a race that stands still."""
        kept = self.store.controllers.load(TERM)
        return "\n".join(
            [
                f"{len(set(self.completed))} of {self.published} done, {self.removals} removals",
                str(kept and (kept.plan, {**kept.memory, "instances": len(kept.memory["instances"])})),
                *map(str, self.store.hosts.list()),
                *map(str, self.store.hosts.drains()),
                *map(str, self.store.reads.depths()),
                *map(str, self.store.events.list(limit=20)),
            ]
        )

    def violations(self) -> list[str]:
        """Return what the witness saw."""
        with closing(psycopg2.connect(self.url)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT what FROM violation")
            return [what for (what,) in cursor.fetchall()]

    def _sql(self, text: str, **parameters: Any) -> None:
        with closing(psycopg2.connect(self.url)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(text, parameters)

    def close(self) -> None:
        self.over.set()
        for hosts in self._hosts.values():
            for host in hosts:
                host.join(60)
        self._watching.close()
        self.store.close()


@contextmanager
def quick_rules() -> Iterator[None]:
    """Let minutes be seconds in the rules that wait for minutes."""
    before = {name: getattr(plan, name) for name in QUICK_RULES}
    for name, value in QUICK_RULES.items():
        setattr(plan, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(plan, name, value)


def run(url: str, for_s: float, seed: int) -> Race:
    """Let controller and hosts fight over a bursty queue; return the race when it is over."""
    race = Race(url, seed)
    try:
        with quick_rules():
            controller = Controller(race.store, race, AGGRESSIVE, tick_every_s=0.1)
            with running(controller):
                race.publish_in_bursts(for_s)
                race.wait_done()
    finally:
        race.close()
    return race
