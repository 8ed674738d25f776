"""A process that forks while its beat, a thread of it, uses Django's database."""

from __future__ import annotations

import os
import threading

from django_celery_beat.models import PeriodicTask

from atomic_celery.beat.periodic_tasks import PeriodicTasks
from tests.beat.periodic.app import app


def happened() -> list[str]:
    """Fork while rows are read; return what happened, in its order."""
    source, order = PeriodicTasks(app, {}), []
    reading, over = threading.Event(), threading.Event()

    def read() -> None:
        with source._database():
            PeriodicTask.objects.count()
            reading.set()
            over.wait(60)
            order.append("read")

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        order.append("forked")
        os.waitpid(child, 0)

    threads = [threading.Thread(target=read), threading.Thread(target=fork)]
    threads[0].start()
    reading.wait(60)
    threads[1].start()
    threads[1].join(0.5)  # without a reason to wait it would be over by now
    over.set()
    for thread in threads:
        thread.join(60)
    return order
