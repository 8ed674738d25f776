"""What this connection declared, so that it can be declared again when it went away in the meantime."""

from __future__ import annotations

from atomic_celery.store import Store
from atomic_celery.store.queues import Binding, Queue, QueueSpec


class Declared:
    """The queues of one connection and what it bound to them."""

    def __init__(self) -> None:
        self._specs: dict[str, QueueSpec] = {}
        self._bindings: dict[str, set[Binding]] = {}
        self.exclusive: set[str] = set()
        """Those that go with the connection."""

    def queue(self, spec: QueueSpec, *, exclusive: bool) -> None:
        """Remember a queue."""
        self._specs[spec.name] = spec
        if exclusive:
            self.exclusive.add(spec.name)

    def binding(self, binding: Binding) -> None:
        """Remember what was bound to a queue."""
        self._bindings.setdefault(binding.queue, set()).add(binding)

    def unbound(self, binding: Binding) -> None:
        """Forget it."""
        self._bindings.get(binding.queue, set()).discard(binding)

    def deleted(self, name: str) -> None:
        """Forget a queue that is meant to be gone."""
        self._specs.pop(name, None)
        self._bindings.pop(name, None)
        self.exclusive.discard(name)

    def again(self, store: Store, name: str) -> Queue | None:
        """Declare a queue again as it was; None if it was not declared here."""
        spec = self._specs.get(name)
        if spec is None:
            return store.queues.get(name)
        queue = store.queues.declare(spec)
        for each in self._bindings.get(name, ()):
            store.queues.bind(each.exchange, each.routing_key, each.pattern, each.queue)
        return queue
