"""Ways to the pages of django-celery-results, where it is installed."""

from __future__ import annotations

from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode


def results_url() -> str | None:
    """Return the address of the list of results; None: there is none."""
    try:
        return str(reverse("admin:django_celery_results_taskresult_changelist"))
    except NoReverseMatch:
        return None


def result_url(task_id: str | None) -> str | None:
    """Return the address where the result of a task is found; None: there is none."""
    there = results_url()
    return f"{there}?{urlencode({'task_id': task_id})}" if there and task_id else None
