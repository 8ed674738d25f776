"""A delivery: many small tasks as one root, that is admitted a few at a time, paused and looked at as one."""

from atomic_celery import Budget, root
from shop.tasks import unpack


def receive(name, items):
    with root(f"delivery {name}", max_running=2, budget=Budget(children=2 * len(items)), labels={"from": "the works"}):
        for item in items:
            unpack.delay(item)
