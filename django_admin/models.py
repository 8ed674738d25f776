"""The fleet's tables as Django's models: unmanaged, read-only, and what permissions are about."""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models

from django_admin import project
from django_admin.apps import LABEL

_READ_ONLY = "the fleet's tables are read-only here; atomic_celery.operations changes them"


class ReadOnlyError(TypeError):
    """Somebody tried to change the fleet's tables through a model."""

    def __init__(self) -> None:
        super().__init__(_READ_ONLY)


def _refuse(*_args: Any, **_options: Any) -> NoReturn:
    raise ReadOnlyError


class ReadOnlyQuerySet(models.QuerySet):
    """Rows to look at, in the database where the fleet is."""

    create = update = delete = bulk_create = bulk_update = get_or_create = update_or_create = _refuse


class Rows(models.Manager):
    """The way to them."""

    create = update = bulk_create = bulk_update = get_or_create = update_or_create = _refuse

    def get_queryset(self) -> ReadOnlyQuerySet:
        """Return all rows."""
        return ReadOnlyQuerySet(self.model, using=self._db or project.alias())


class FleetModel(models.Model):
    """A row that only `atomic_celery.operations` changes."""

    objects = Rows()
    save = delete = _refuse

    class Meta:
        abstract = True
        app_label = LABEL
        managed = False
        default_permissions = ("view",)


def _table(name: str) -> str:
    return f"{project.prefix()}_{name}"


class Overview(FleetModel):
    """The fleet as a whole; its rows are the store's own settings."""

    name = models.TextField(primary_key=True)
    value = models.TextField()

    class Meta(FleetModel.Meta):
        db_table = _table("setting")
        verbose_name = verbose_name_plural = "overview"


class Host(FleetModel):
    """A registered host."""

    id = models.TextField(primary_key=True)
    boot = models.TextField()
    name = models.TextField()
    provider_id = models.TextField(null=True)
    slots = models.IntegerField()
    busy = models.IntegerField()
    labels = models.TextField()
    queues = models.TextField()
    versions = models.TextField()
    started_ms = models.BigIntegerField()
    reported_ms = models.BigIntegerField()
    poll_failures = models.IntegerField()
    last_error = models.TextField(null=True)
    draining_ms = models.BigIntegerField(null=True)

    class Meta(FleetModel.Meta):
        db_table = _table("host")
        permissions = (
            ("operate_host", "Can steer hosts: everything below"),
            ("drain_host", "Can drain hosts and take drains back"),
            ("forget_host", "Can forget hosts that are gone"),
        )

    def __str__(self) -> str:
        return str(self.name)


class Root(FleetModel):
    """A workflow that was declared or steered."""

    id = models.TextField(primary_key=True)
    state = models.TextField()
    max_running = models.IntegerField(null=True)
    created_ms = models.BigIntegerField()
    changed_ms = models.BigIntegerField()

    class Meta(FleetModel.Meta):
        db_table = _table("root")
        permissions = (
            ("operate_root", "Can steer roots: everything below"),
            ("pause_root", "Can pause and resume roots"),
            ("set_root", "Can change the limits and budgets of roots"),
            ("cancel_root", "Can cancel roots"),
        )

    def __str__(self) -> str:
        return str(self.id)


class Message(FleetModel):
    """An unfinished message."""

    id = models.BigAutoField(primary_key=True)
    queue_id = models.BigIntegerField()
    task_id = models.TextField(null=True)
    task_name = models.TextField(null=True)
    root_id = models.TextField(null=True)
    priority = models.SmallIntegerField()
    published_ms = models.BigIntegerField()
    due_ms = models.BigIntegerField(null=True)
    expires_ms = models.BigIntegerField(null=True)

    class Meta(FleetModel.Meta):
        db_table = _table("message")
        permissions = (
            ("operate_message", "Can steer messages: everything below"),
            ("requeue_message", "Can requeue messages, and run delayed ones now"),
            ("bury_message", "Can put messages aside"),
            ("delete_message", "Can delete messages"),
        )

    def __str__(self) -> str:
        return f"{self.pk} {self.task_name or ''}".strip()


class FleetEvent(FleetModel):
    """Something that happened to the fleet."""

    id = models.BigAutoField(primary_key=True)
    at_ms = models.BigIntegerField()
    kind = models.TextField()
    host = models.TextField(null=True)
    instance = models.TextField(null=True)
    root = models.TextField(null=True)
    detail = models.TextField(null=True)

    class Meta(FleetModel.Meta):
        db_table = _table("fleet_event")

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class Term(FleetModel):
    """A leader's lease."""

    name = models.TextField(primary_key=True)
    holder = models.TextField()
    fence = models.BigIntegerField()
    begun_ms = models.BigIntegerField()
    renewed_ms = models.BigIntegerField()
    lease_until_ms = models.BigIntegerField()

    class Meta(FleetModel.Meta):
        db_table = _table("term")
        verbose_name_plural = "controller and terms"
        permissions = (("operate_term", "Can end the term of whoever leads"),)

    def __str__(self) -> str:
        return str(self.name)
