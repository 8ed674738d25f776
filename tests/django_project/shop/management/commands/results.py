"""Print what the rows of django-celery-results say, as JSON."""

import json
from typing import Any

from django.core.management.base import BaseCommand
from django_celery_results.models import ChordCounter, TaskResult


class Command(BaseCommand):
    """``manage.py results``."""

    def handle(self, **_: Any) -> None:
        """Print it."""
        assert not ChordCounter.objects.exists()
        columns = ("task_name", "task_args", "status", "result")
        self.stdout.write(json.dumps(list(TaskResult.objects.order_by("date_created").values_list(*columns))))
