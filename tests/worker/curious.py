"""The test workers' app, with a receiver that compares each request with what Celery would have made of its message."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from celery.signals import task_received
from celery.worker.request import Request

from tests.support.application import app, note

__all__ = ["app", "note"]

ITS_OWN = {"_connection_errors", "_on_ack", "_on_reject", "_request_dict", "time_limits"}


@task_received.connect
def compare(request: Any, **_: Any) -> None:
    plain = Request(request._message, app=app, task=request.task, hostname=request.hostname)
    slots = [name.replace("__", "_Request__", 1) if name.startswith("__") else name for name in Request.__slots__]
    names = sorted(name for name in {*slots, *vars(plain)} - ITS_OWN if hasattr(plain, name))
    differing = [name for name in names if getattr(request, name, "missing") != getattr(plain, name)]
    Path(os.environ["TEST_DIFFERENCES"]).write_text(json.dumps({"compared": names, "differing": differing}))
