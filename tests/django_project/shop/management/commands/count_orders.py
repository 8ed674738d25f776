"""Send a chord in a transaction that is rolled back, and one in a transaction that is not."""

from typing import Any

from celery import chord
from django.core.management.base import BaseCommand
from django.db import transaction
from shop.models import Order
from shop.tasks import count, handle


class Command(BaseCommand):
    """``manage.py count_orders``."""

    def handle(self, **_: Any) -> None:
        """Send them."""
        for prefix in ("kept", "undone"):
            with transaction.atomic():
                for number in range(2):
                    Order.objects.create(name=f"{prefix}-{number}")
                result = chord([handle.s(f"{prefix}-{number}") for number in range(2)], count.s()).delay()
                if prefix == "undone":
                    transaction.set_rollback(True)
                else:
                    transaction.on_commit(lambda result=result: self.stdout.write(str(result.get(timeout=60))))
