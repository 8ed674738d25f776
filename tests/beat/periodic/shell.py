"""Runs each line it reads as an expression over the models, and answers with its value as JSON."""

import json
import sys

import django

django.setup()

from datetime import timedelta  # noqa: E402

from django.core.management import call_command  # noqa: E402
from django.utils.timezone import now  # noqa: E402
from django_celery_beat import models  # noqa: E402

from tests.beat.periodic import forks  # noqa: E402


def change(name: str, **fields: object) -> None:
    """Save a periodic task with other fields, as the admin does."""
    task = models.PeriodicTask.objects.get(name=name)
    vars(task).update(fields)
    task.save()


NAMES = {
    **vars(models),
    "call_command": call_command,
    "change": change,
    "forks": forks,
    "now": now,
    "timedelta": timedelta,
}

for line in sys.stdin:
    print(json.dumps(eval(line, dict(NAMES)), default=str), flush=True)
