"""Hosts that exist in the database only."""

from __future__ import annotations

from typing import Any

from atomic_celery.store.hosts import NewHost

_FACTS: dict[str, Any] = {
    "provider_id": None,
    "machine": "machine",
    "machine_boot": "machine boot",
    "pid": 1,
    "pid_started": "1",
    "slots": 1,
    "busy": 0,
    "labels": {},
    "queues": (),
    "versions": {},
}


def new_host(host_id: str, boot: str, **facts: Any) -> NewHost:
    """Return a host that may be registered; what is not said of it does not matter."""
    return NewHost(id=host_id, boot=boot, **{"name": f"{host_id}@machine", **_FACTS, **facts})
