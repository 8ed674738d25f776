"""The Celery app, and the tasks that the pages show."""

import os
import time

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")

app = Celery("proj")
app.config_from_object("django.conf:settings", namespace="CELERY")


@app.task(name="shop.pay")
def pay(order: int, **_details: object) -> int:
    """Take some time, if there is a file that says so."""
    return order


@app.task(name="shop.wait")
def wait(path: str) -> str:
    """Wait until a file is there."""
    while not os.path.exists(path):
        time.sleep(0.02)
    return path


@app.task(name="shop.fail")
def fail() -> None:
    """Raise."""
    raise ValueError("on purpose")
