"""``manage.py fleet_metrics``: the scaling signal over HTTP."""

from __future__ import annotations

from django_admin.management.commands._handing_over import HandsOver


class Command(HandsOver):
    """``celery -A proj atomic metrics``."""

    help = "Serve the scaling signal as JSON and for Prometheus; --help says how."
    command = "metrics"
