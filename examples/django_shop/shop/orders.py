"""Buying: the order and the task that takes its payment are there together, or not at all."""

from django.db import transaction

from shop.models import Item, Order
from shop.tasks import take_payment


class SoldOut(Exception):
    pass


@transaction.atomic
def buy(item_name, customer):
    item = Item.objects.select_for_update().get(name=item_name)
    order = Order.objects.create(item=item, customer=customer)
    take_payment.delay(order.pk)
    if not item.in_stock:
        raise SoldOut(item_name)  # takes back the order and the task
    item.in_stock -= 1
    item.save()
    return order
