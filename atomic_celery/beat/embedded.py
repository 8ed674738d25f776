"""The beat in a worker, ``celery worker -B``: which scheduler it takes, and where it runs."""

from __future__ import annotations

from typing import Any

from celery.app.defaults import DEFAULTS
from celery.beat import EmbeddedService
from celery.worker.components import Beat

from atomic_celery.beat.scheduler import Scheduler
from atomic_celery.worker.manners import configured


def schedule_here(worker: Any) -> None:
    """Let the beat of *worker* be ours, if it has one and no other scheduler was asked for."""
    asked = worker.options.get("scheduler") or configured(worker.app.conf, "beat_scheduler")
    if worker.options.get("beat") and worker.scheduler == DEFAULTS["beat_scheduler"] and not asked:
        worker.options.update(beat=False, atomic_beat=True)
        worker.app.steps["worker"].add(BeatStep)


class BeatStep(Beat):
    """A thread instead of Celery's process: it ends with its worker, however that ends, and hands its term over.

    A process would be forked with the worker's connection to SQLite, and could not open one of its own.
    """

    def __init__(self, worker: Any, atomic_beat: bool = False, **options: Any) -> None:
        super().__init__(worker, **{**options, "beat": atomic_beat})

    def create(self, worker: Any) -> Any:
        """Make the beat.

        Raises:
            ImproperlyConfigured: The pool is one of greenlets.
        """
        super().create(worker)
        worker.beat = EmbeddedService(worker.app, thread=True, scheduler_cls=Scheduler)
        return worker.beat
