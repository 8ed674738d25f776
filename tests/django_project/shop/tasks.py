"""What the workers do."""

from celery import shared_task
from django.db.models import F
from shop.models import Order


@shared_task
def handle(name: str) -> None:
    """Count up the order's number of times it was handled."""
    assert Order.objects.filter(name=name).update(handled=F("handled") + 1) == 1, f"no order {name!r} is committed"


@shared_task
def count(handled: list[None]) -> int:
    """Return how many orders were handled: a chord's body."""
    return len(handled)
