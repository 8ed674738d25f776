"""Views; ATOMIC_REQUESTS makes each a transaction."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from shop.models import Order
from shop.tasks import handle


def order(request: HttpRequest) -> HttpResponse:
    """Take an order and send its task; the order is written last, so the task must not run before the commit."""
    name = request.GET["name"]
    handle.delay(name)
    Order.objects.create(name=name)
    return HttpResponse(name)


def fail(request: HttpRequest) -> HttpResponse:
    """Send a task, and fail."""
    order(request)
    raise ValueError("on purpose")


@transaction.non_atomic_requests
def outside(request: HttpRequest) -> HttpResponse:
    """Send a task outside of any transaction, and fail."""
    handle.delay(request.GET["name"])
    raise ValueError("on purpose")
