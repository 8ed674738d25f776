"""The test workers' app, with a host that is cold-shut down between a task's beginning and hearing of it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery import bootsteps

from tests.support.application import app, gate

__all__ = ["app", "gate"]


class Deaf(bootsteps.StartStopStep):
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        def quit_once_it_began() -> None:
            for tick in hub.on_tick - {quit_once_it_began}:
                tick()  # the task is handed to a child in one of these
            if consumer.pool.busy_count:
                hub.on_tick.remove(quit_once_it_began)
                while not os.path.exists(os.environ["TEST_BEGUN"]):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGQUIT)

        hub.on_tick.add(quit_once_it_began)


app.steps["consumer"].add(Deaf)
