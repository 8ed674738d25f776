"""A small cloud in memory: what a provisioner drives, with the habits of real ones."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from atomic_celery.fleet.provisioner import Instance, InstanceState, Permit


@dataclass
class Cloud:
    """A provisioner. Every call is noted; what is to go wrong is raised by the next call of that name."""

    kind: str = "cloud"
    instances: dict[str, Instance] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    """Instances that a listing lacks."""
    late: bool = False
    """Whether it lists nothing that was asked for from now on."""
    calls: list[str] = field(default_factory=list)
    failures: dict[str, Exception] = field(default_factory=dict)
    during: Callable[[str, Permit], None] = lambda name, permit: None
    """Called in the middle of each call."""
    threads: set[str] = field(default_factory=set)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def list(self, permit: Permit) -> list[Instance]:
        self._call("list", permit)
        return [instance for name, instance in self.instances.items() if name not in self.hidden]

    def scale_to(self, target: int, permit: Permit, *, add: int) -> None:
        self._call(f"scale_to {target} +{add}", permit)
        for _ in range(min(add, target - len(self.instances.keys() - self.hidden))):
            name = self.make()
            if self.late:
                self.hidden.add(name)

    def drain(self, instance_id: str, permit: Permit) -> None:
        self._call(f"drain {instance_id}", permit)
        self.instances.pop(instance_id, None)

    def make(self, name: str = "", state: InstanceState = "running", since_ms: int | None = None) -> str:
        name = name or f"vm-{next(self._numbers)}"
        self.instances[name] = Instance(id=name, state=state, since_ms=since_ms)
        return name

    def acts(self) -> list[str]:
        """Return the calls that were no mere look."""
        return [call for call in self.calls if call != "list"]

    def _call(self, call: str, permit: Permit) -> None:
        name = call.split()[0]
        self.threads.add(threading.current_thread().name)
        self.during(name, permit)
        permit.require(call)
        self.calls.append(call)
        if name in self.failures:
            raise self.failures[name]
