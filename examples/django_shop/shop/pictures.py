"""Pictures: stored with the chord that makes their thumbnails."""

from celery import chord
from django.db import transaction

from shop.models import Picture
from shop.tasks import make_thumbnail, show

WIDTHS = (64, 128, 256)


@transaction.atomic
def add(file):
    picture = Picture.objects.create(file=file)
    chord(make_thumbnail.s(picture.pk, width) for width in WIDTHS)(show.s(picture.pk))
    return picture
