"""The app and the tasks that are sent here; nobody runs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import kombu.pools
from celery import Celery


@contextmanager
def make_app(broker_url: str, **conf: object) -> Iterator[Celery]:
    """Make an app with tasks; its connections are closed in the end."""
    app = Celery("publishing", broker=broker_url, set_as_current=False)
    app.conf.update(task_ignore_result=True, task_routes={"routed.*": {"queue": "routed", "priority": 3}}, **conf)
    app.task(add, name="add", shared=False)
    app.task(add, name="routed.add", shared=False)
    app.task(add, name="urgent", shared=False, compression="gzip", serializer="pickle", time_limit=5)
    app.task(add, name="untyped", shared=False, typing=False)
    app.task(bound, name="bound", shared=False, bind=True)
    try:
        yield app
    finally:
        app.close()
        kombu.pools.reset()


def add(x: object = 0, y: object = 0) -> object:
    """Take two things."""
    return x, y


def bound(self: object, x: object = 0) -> object:
    """Take itself and a thing."""
    return x
