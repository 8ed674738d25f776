"""Take orders, each in a transaction; every other one is rolled back."""

from typing import Any

from django.core.management.base import BaseCommand
from django.db import transaction
from shop.models import Order
from shop.tasks import handle


class Command(BaseCommand):
    """``manage.py take_orders COUNT``."""

    def add_arguments(self, parser: Any) -> None:
        """Take the number of orders."""
        parser.add_argument("count", type=int)

    def handle(self, *_: Any, **options: Any) -> None:
        """Take them."""
        for number in range(options["count"]):
            with transaction.atomic():
                handle.delay(f"order-{number}")
                Order.objects.create(name=f"order-{number}")
                if number % 2:
                    transaction.set_rollback(True)
