from django.db import models


class Item(models.Model):
    name = models.CharField(max_length=50, unique=True)
    in_stock = models.PositiveIntegerField()


class Order(models.Model):
    item = models.ForeignKey(Item, on_delete=models.PROTECT)
    customer = models.CharField(max_length=50)
    paid = models.BooleanField(default=False)


class Payment(models.Model):
    """One an order, whatever happens to the worker that takes it."""

    order = models.OneToOneField(Order, on_delete=models.CASCADE)
    reference = models.CharField(max_length=50)


class Picture(models.Model):
    file = models.FileField(upload_to="originals")
    ready = models.BooleanField(default=False)


class Thumbnail(models.Model):
    picture = models.ForeignKey(Picture, related_name="thumbnails", on_delete=models.CASCADE)
    width = models.PositiveIntegerField()
    path = models.CharField(max_length=200)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["picture", "width"], name="one_a_width")]
