"""The kombu transport.

```
transport   one connection          broker     what a process's connections to one database share
channel     queues, publishing      address    which database, and with what settings
qos         acknowledgements        topology   who gets a message
intake      consuming               codec      messages as rows
```
"""

from __future__ import annotations

from atomic_celery import groups
from atomic_celery.transport.transport import Transport
from atomic_celery.worker import arrival

__all__ = ["Transport"]

arrival.watch()
groups.install()
