"""The Celery app, as Celery's documentation writes it for Django."""

from celery import Celery

app = Celery("application")
app.config_from_object("django.conf:settings", namespace="CELERY")
