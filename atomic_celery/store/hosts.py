"""The list of hosts, and the drains that let an instance take no more."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atomic_celery.store.connection import Row
from atomic_celery.store.database import Noun

FORGOTTEN_MS = 24 * 3600 * 1000
"""How long a host may be silent, holding nothing, before the next one to register drops it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHost:
    """A host that enters the list."""

    id: str
    """Survives restarts."""
    boot: str
    """Does not."""
    name: str
    provider_id: str | None
    """What the provider calls the instance that it runs on."""
    machine: str
    machine_boot: str
    pid: int
    pid_started: str
    slots: int
    busy: int
    labels: Mapping[str, str]
    queues: Sequence[str]
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(NewHost):
    """A host on the list, as of its last report."""

    started_ms: int
    reported_ms: int
    poll_failures: int
    last_error: str | None
    draining_ms: int | None
    """Since when it takes no more."""
    idle_since_ms: int | None = None
    """Since when it has held nothing; None: it holds something, or has not said so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What a host says of itself every few seconds."""

    slots: int
    busy: int
    queues: Sequence[str]
    poll_failures: int = 0
    last_error: str | None = None
    draining: bool = False
    """Whether it drains by its own will, as on a signal; remembered until it registers again."""
    idle_ms: int | None = None
    """How long it has held nothing; None: it holds something."""


@dataclass(frozen=True, slots=True)
class HostState:
    """What the list says to a host."""

    draining: bool
    """Whether it is to take no more."""
    known: bool
    """Whether this boot of it is on the list; if not, it has to register."""


@dataclass(frozen=True, slots=True)
class Drain:
    """An instance that takes no more; outlives its hosts."""

    instance: str
    reason: str
    asked_by: str
    asked_ms: int
    missed_listings: int
    removing_ms: int | None = None
    """Since when it is being removed; such a drain is not taken back."""
    on_instance: str | None = None
    """Of a host that is drained by its own id: the instance that it is on, with which this ends."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain reached."""

    instance: str
    """What it is kept under: a provider id if there is one, else a host id."""
    hosts: tuple[str, ...]
    """Ids of the hosts that it concerns now; may be empty."""
    new: bool
    """False: it had been asked before, and the first reason stays."""


_Hosts = list[Host]  # inside the class, list is a verb
_Drains = list[Drain]
_Instances = list[str]
_COLUMNS = [field.name for field in dataclasses.fields(Host)]
_JSON = ("labels", "queues", "versions")


class Hosts(Noun):
    """The verbs of hosts. Each is one statement, or a transaction where it says so."""

    noun = "hosts"

    def register(self, host: NewHost) -> HostState:
        """Enter *host* into the list, in place of its earlier boot if there was one.

        Atomicity: one transaction; a drain asked at the same time counts.
        """
        row = self._one(
            "register",
            id=host.id,
            boot=host.boot,
            name=host.name,
            provider_id=host.provider_id,
            machine=host.machine,
            machine_boot=host.machine_boot,
            pid=host.pid,
            pid_started=host.pid_started,
            slots=host.slots,
            busy=host.busy,
            labels=json.dumps(dict(host.labels)),
            queues=json.dumps(tuple(host.queues)),
            versions=json.dumps(dict(host.versions)),
            forgotten_ms=FORGOTTEN_MS,
        )
        return HostState(draining=row is not None and bool(row[0]), known=True)

    def report(self, host_id: str, boot: str, report: HostReport) -> HostState:
        """Say that a host lives, and what it does."""
        row = self._one(
            "report",
            id=host_id,
            boot=boot,
            slots=report.slots,
            busy=report.busy,
            queues=json.dumps(tuple(report.queues)),
            poll_failures=report.poll_failures,
            last_error=report.last_error,
            draining=report.draining,
            idle_ms=report.idle_ms,
        )
        return HostState(draining=row is not None and bool(row[0]), known=row is not None)

    def leave(self, host_id: str, boot: str) -> bool:
        """Take a host off the list; False: this boot of it was not on it."""
        return self._exec("leave", id=host_id, boot=boot) > 0

    def forget(self, host_id: str, silent_ms: int) -> bool:
        """Take a host off the list that was silent for so long and holds nothing; False: nothing was changed.

        One that reports again after all enters the list anew.

        Atomicity: one statement.
        """
        return self._exec("forget", id=host_id, silent_ms=silent_ms) > 0

    def list(self) -> _Hosts:
        """Return every host on the list, ordered by name."""
        return [_host(row) for row in self._many("list")]

    def same_machine(self, machine: str, machine_boot: str) -> _Hosts:
        """Return the hosts of one boot of one machine; none when the machine is not known."""
        if not machine or not machine_boot:
            return []
        rows = self._many("same_machine", machine=machine, machine_boot=machine_boot)
        return [_host(row) for row in rows]

    def drain(self, instance: str, reason: str, asked_by: str) -> Drained:
        """Let an instance take no more: once this is committed, none of its hosts claims anything.

        What they hold they finish. It also counts for hosts that register on it later.

        Args:
            instance: A provider id, or a host's id, which stands for the instance it runs on.
            reason: Shown to people.
            asked_by: Likewise.

        Atomicity: one transaction; waits for the claims that have begun.
        """
        with self._database.transaction("hosts.drain"):
            return self._drain(self._instance_of(instance), reason, asked_by)

    def drain_together(self, instance: str, host_ids: Sequence[str], reason: str, asked_by: str) -> None:
        """Drain an instance with the hosts on it that do not know its name; their drains end with its.

        Atomicity: one transaction; waits for the claims that have begun.
        """
        with self._database.transaction("hosts.drain"):
            for target in {instance: None, **dict.fromkeys(host_ids)}:
                self._drain(self._instance_of(target), reason, asked_by)
            self._exec("tie_drains", instance=instance, host_ids=list(host_ids))

    def drain_if_idle(self, host_id: str, reason: str, asked_by: str) -> bool:
        """Drain the instance of a host, only if no host on it holds a message; whether it was done.

        Atomicity: one transaction, wholly before or wholly after each claim.
        """
        with self._database.transaction("hosts.drain"):
            self._exec("hold_drains")
            instance = self._instance_of(host_id)
            held = [row[0] for row in self._many("hold", instance=instance)]
            if host_id not in held or self._hold_claims(held):
                return False
            self._drain(instance, reason, asked_by)
        return True

    def drain_unused(
        self, instance: str, host_ids: Sequence[str], reason: str, asked_by: str, *, silent_ms: int | None = None
    ) -> bool:
        """Drain an instance, only if no host on it holds a message; whether that was done.

        Args:
            instance: As the provider calls it.
            host_ids: Hosts on it that do not know its name.
            reason: Shown to people.
            asked_by: Likewise.
            silent_ms: Only if no host on it has reported for so long, either.

        Atomicity: one transaction, wholly before or wholly after each claim and each registration.
        """
        with self._database.transaction("hosts.drain"):
            if not self._unused(instance, host_ids, silent_ms):
                return False
            self.drain_together(instance, host_ids, reason, asked_by)
        return True

    def begin_removal(self, instance: str, host_ids: Sequence[str], *, silent_ms: int) -> bool:
        """Note that a drained instance is being removed, only if it can be without harm; whether that was done.

        It can if its drain was not taken back, no host on it has reported for *silent_ms*, and none holds a message.
        From then on its drain is not taken back any more, and hosts on it that do not know its name are drained, too.

        Atomicity: one transaction.
        """
        with self._database.transaction("hosts.remove"):
            if not self._unused(instance, host_ids, silent_ms):
                return False
            if host_ids:
                self._exec("drain_along", instance=instance, host_ids=list(host_ids))
            removing = [row[0] for row in self._many("begin_removal", instance=instance)]
            for name in removing:
                self._exec("mark_draining", instance=name)
        return instance in removing

    def count_listing(
        self, listed: Sequence[str], missing: Sequence[str], forget_after: int, *, silent_ms: int
    ) -> _Instances:
        """Count a listing of the provider's for each drain; return the instances whose drains were forgotten by it.

        No drain is forgotten while a host on its instance reports.

        Args:
            listed: Instances that are in it.
            missing: Drained instances that are not.
            forget_after: After how many listings in a row that lack it a drain is forgotten.
            silent_ms: A host that has said nothing for so long does not report.

        Atomicity: one transaction, wholly before or wholly after each registration.
        """
        with self._database.transaction("hosts.listing"):
            self._exec("hold_drains")
            if listed:
                self._exec("listed", instances=list(listed))
            missed = self._many("not_listed", instances=list(missing), silent_ms=silent_ms) if missing else []
            forgotten = [str(instance) for instance, times in missed if times >= forget_after]
            for instance in forgotten:
                gone = [row[0] for row in self._many("forget_removed", instance=instance)]
                self._exec("unmark_draining", instances=gone)
        return forgotten

    def undrain(self, instance: str) -> bool:
        """Take a drain back; False: there was none, or the instance is being removed.

        Args:
            instance: A provider id, or a host's id, which stands for the instance it runs on.

        Atomicity: one transaction.
        """
        with self._database.transaction("hosts.undrain"):
            self._exec("hold_drains")
            tied_to = self._one("tied_to", host_id=instance)
            whole = self._instance_of(instance) if tied_to is None else str(tied_to[0])
            forgotten = [row[0] for row in self._many("forget_drain", instance=whole, host_id=instance)]
            self._exec("unmark_draining", instances=[whole, instance, *forgotten])
        return bool(forgotten)

    def drains(self) -> _Drains:
        """Return every instance that takes no more, the one asked first first."""
        return [Drain(*row) for row in self._many("drains")]

    def _instance_of(self, given: str) -> str:
        row = self._one("instance_of", id=given)
        return given if row is None else str(row[0])

    def _drain(self, instance: str, reason: str, asked_by: str) -> Drained:
        new = self._exec("keep_drain", instance=instance, reason=reason, asked_by=asked_by) > 0
        held = self._many("hold", instance=instance)
        self._exec("mark_draining", instance=instance)
        return Drained(instance, tuple(row[0] for row in held), new)

    def _unused(self, instance: str, host_ids: Sequence[str], silent_ms: int | None) -> bool:
        """Hold what might use an instance until the transaction ends; whether nothing does."""
        self._exec("hold_drains")
        hosts = self._many("hold_instance", instance=instance, host_ids=list(host_ids), silent_ms=silent_ms or 0)
        if silent_ms is not None and not all(silent for _, silent in hosts):
            return False
        return not self._hold_claims([*(host_id for host_id, _ in hosts), *host_ids])

    def _hold_claims(self, host_ids: Sequence[str]) -> bool:
        row = self._one("holds_claims", host_ids=host_ids)
        return row is not None and bool(row[0])


def _host(row: Row) -> Host:
    values = dict(zip(_COLUMNS, row, strict=True))
    return Host(**{**values, **{name: json.loads(values[name]) for name in _JSON}})
