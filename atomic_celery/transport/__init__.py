"""The kombu transport.

```
transport   one connection          broker     what a process's connections to one database share
channel     queues, publishing      address    which database, and with what settings
qos         acknowledgements        topology   who gets a message
intake      consuming               codec      messages as rows
```
"""

from __future__ import annotations

from typing import Any

from celery.signals import worker_init

from atomic_celery import groups
from atomic_celery.transport.transport import Transport

__all__ = ["Transport"]


def _make_host(sender: Any, **_: Any) -> None:
    """Make a host of a Celery worker that uses this transport; Celery imports it just before."""
    if isinstance(sender._conninfo.transport, Transport):
        from atomic_celery.worker.install import install_or_exit  # only workers need it, and it needs all of Celery

        install_or_exit(sender)


worker_init.connect(_make_host, weak=False, dispatch_uid="atomic_celery")
groups.install()
