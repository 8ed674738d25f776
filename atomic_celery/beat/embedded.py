"""The beat in a worker, ``celery worker -B``: which scheduler it takes, and how it leaves."""

from __future__ import annotations

import os
from types import FrameType
from typing import Any

from celery.app.defaults import DEFAULTS
from celery.platforms import signals
from celery.signals import beat_embedded_init

from atomic_celery.beat.scheduler import Scheduler
from atomic_celery.worker.manners import configured

PATH = f"{Scheduler.__module__}:{Scheduler.__qualname__}"


def schedule_here(worker: Any) -> None:
    """Let the beat of *worker* be ours, unless another scheduler was asked for."""
    asked = worker.options.get("scheduler") or configured(worker.app.conf, "beat_scheduler")
    if worker.scheduler == DEFAULTS["beat_scheduler"] and not asked:
        worker.scheduler = PATH
    beat_embedded_init.connect(_stay_with_worker, dispatch_uid="atomic_celery")


def _stay_with_worker(sender: Any, **_: Any) -> None:
    """Let the beat's process end in order when Celery terminates it, and also when the worker died."""
    if isinstance(sender.scheduler, Scheduler):
        sender.scheduler.worker_pid = os.getppid()
        signals["SIGTERM"] = _end


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit
