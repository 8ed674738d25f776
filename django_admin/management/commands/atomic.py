"""``manage.py atomic …``: everything of ``celery -A proj atomic …``."""

from __future__ import annotations

from django_admin.management.commands._handing_over import HandsOver


class Command(HandsOver):
    """``celery -A proj atomic``."""

    help = "Look after the fleet: everything of `celery -A proj atomic`."
