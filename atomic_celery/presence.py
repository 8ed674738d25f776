"""A host's row in the database: registered, reported every few seconds, and removed by who leaves."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING

from atomic_celery.identity import Identity, Process
from atomic_celery.store.hosts import HostReport, NewHost
from atomic_celery.store.records import Crashed
from atomic_celery.tally import Tally

if TYPE_CHECKING:
    from atomic_celery.config import Settings
    from atomic_celery.store.store import Store

LEAVE_WITHIN_S = 1.0
_VERSIONED = ("atomic_celery", "celery", "kombu")


@dataclass(slots=True)
class Load:
    """What a host is doing at the moment; written by the worker, read by its reports."""

    slots: int
    busy: int = 0
    queues: tuple[str, ...] = ()
    poll_failures: int = 0
    last_error: str | None = None
    draining: bool = False
    tally: Tally = field(default_factory=Tally)
    idle_ms: int | None = None


@dataclass(slots=True)
class Presence:
    """This host's row. Safe from any thread."""

    store: Store
    identity: Identity
    settings: Settings
    name: str
    load: Callable[[], Load]
    on_draining: Callable[[], None] = field(default=lambda: None)
    _has_left: bool = False
    _writing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def provider_id(self) -> str | None:
        """What the provider calls the machine."""
        return self.settings.provider_id or pod_name(os.environ)

    def register(self) -> list[Crashed]:
        """Enter the list of hosts, and recover what dead predecessors of this machine held.

        Returns:
            The messages that are ready again, or buried, because their holder is proven dead.
        """
        dead = self._dead_predecessors()  # one that had our id loses its row to us now
        state = self.store.hosts.register(self._row())
        if state.draining:
            self.on_draining()
        return [crashed for host in dead for crashed in self._recover(*host)]

    def report(self) -> float:
        """Say that this host lives and what it does; return seconds until the next report."""
        with self._writing:
            if not self._has_left:
                self._report()
        return self.settings.report_every_s

    def _report(self) -> None:
        load = self.load()
        report = HostReport(
            slots=load.slots,
            busy=load.busy,
            queues=load.queues,
            poll_failures=load.poll_failures,
            last_error=load.last_error,
            draining=load.draining,
            idle_ms=load.idle_ms,
        )
        with self._counting(load, self.store):
            state = self.store.hosts.report(self.identity.id, self.identity.boot, report)
        if not state.known:
            state = self.store.hosts.register(self._row())
        if state.draining:
            self.on_draining()

    def leave(self, store: Store | None = None) -> None:
        """Leave the list of hosts for good; by the connections of another *store*, if one is given."""
        # A report that is under way must not enter the host again; one that hangs must not hold up its end.
        reported = self._writing.acquire(timeout=LEAVE_WITHIN_S)
        try:
            self._has_left = True
            store = store or self.store
            with self._counting(self.load(), store):
                store.hosts.leave(self.identity.id, self.identity.boot)
        finally:
            if reported:
                self._writing.release()

    @contextlib.contextmanager
    def _counting(self, load: Load, store: Store) -> Iterator[None]:
        """Count what has ended since the last time, in one transaction with what is inside."""
        samples = load.tally.take()
        if not samples:
            yield
            return
        try:
            with store.transaction("report"):
                yield
                store.traffic.add(self.identity.id, samples)
        except BaseException:
            load.tally.give_back(samples)  # rather twice, when no answer came, than a hole
            raise

    def _row(self) -> NewHost:
        load, process = self.load(), self.identity.process
        return NewHost(
            id=self.identity.id,
            boot=self.identity.boot,
            name=self.name,
            provider_id=self.provider_id,
            machine=process.machine,
            machine_boot=process.machine_boot,
            pid=process.pid,
            pid_started=process.pid_started,
            slots=load.slots,
            busy=load.busy,
            labels=dict(self.settings.labels),
            queues=load.queues,
            versions=versions(),
        )

    def _dead_predecessors(self) -> list[tuple[str, str]]:
        own = self.identity.process
        return [
            (host.id, host.boot)
            for host in self.store.hosts.same_machine(own.machine, own.machine_boot)
            if Process(host.machine, host.machine_boot, host.pid, host.pid_started).proven_dead(own)
        ]

    def _recover(self, host_id: str, boot: str) -> list[Crashed]:
        crashed = self.store.messages.release_holder(host_id, boot, "its host died")
        self.store.hosts.leave(host_id, boot)
        return crashed


def versions() -> dict[str, str]:
    """Return what this host runs."""
    found = {"python": platform.python_version()}
    for package in _VERSIONED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def pod_name(environ: Mapping[str, str]) -> str | None:
    """Return the name of the Kubernetes pod this runs in; None outside of one."""
    if "KUBERNETES_SERVICE_HOST" not in environ:
        return None
    return environ.get("HOSTNAME") or socket.gethostname()
