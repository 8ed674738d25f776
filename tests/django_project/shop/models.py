"""What the shop writes itself."""

from django.db import models


class Order(models.Model):
    """An order; a task notes that it was handled."""

    name = models.CharField(max_length=50)
    handled = models.IntegerField(default=0)
