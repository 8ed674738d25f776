"""Print how often each order was handled, as JSON."""

import json
from typing import Any

from django.core.management.base import BaseCommand
from shop.models import Order


class Command(BaseCommand):
    """``manage.py handled``."""

    def handle(self, **_: Any) -> None:
        """Print it."""
        self.stdout.write(json.dumps(dict(Order.objects.values_list("name", "handled"))))
