"""``manage.py fleet_controller``: adds hosts when the queues grow, drains and removes those that sit idle."""

from __future__ import annotations

from django_admin.management.commands._handing_over import HandsOver


class Command(HandsOver):
    """``celery -A proj atomic controller``."""

    help = "Keep as many hosts as the work wants, and never remove a busy one; --help says how."
    command = "controller"
