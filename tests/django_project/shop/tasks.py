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


@shared_task(atomic_unique="unfinished", atomic_key="{args[0]}")
def handle_once(name: str) -> None:
    """Do so for one call of that name at a time."""
    handle(name)


@shared_task(atomic_max_running=1)
def handle_alone(name: str) -> None:
    """Do so for one call at a time."""
    handle(name)
