"""What workers do. Each task may begin again after a crash, and what it does it does once."""

from pathlib import Path

from celery import shared_task
from django.conf import settings
from django.db import transaction
from PIL import Image

from shop.models import Item, Order, Payment, Picture, Thumbnail


@shared_task
def take_payment(order_id):
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=order_id)
        Payment.objects.get_or_create(order=order, defaults={"reference": f"payment of order {order.pk}"})
        order.paid = True
        order.save()


@shared_task
def unpack(name):
    Item.objects.get_or_create(name=name, defaults={"in_stock": 1})


@shared_task
def make_thumbnail(picture_id, width):
    picture = Picture.objects.get(pk=picture_id)
    path = Path(settings.MEDIA_ROOT, "thumbnails", f"{picture.pk}-{width}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(picture.file.path) as image:
        image.thumbnail((width, width))
        image.save(path)
    Thumbnail.objects.update_or_create(picture=picture, width=width, defaults={"path": str(path)})
    return width


@shared_task
def show(widths, picture_id):
    Picture.objects.filter(pk=picture_id).update(ready=len(widths) > 0)
