"""Django's settings for workers and tests that keep results in the tables of django-celery-results."""

from __future__ import annotations

import os

from tests.support.django_databases import database

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_celery_results"]
SECRET_KEY = "site"
USE_TZ = True

DATABASES = {"default": database(os.environ.get("TEST_ROWS", "sqlite:///:memory:"))}
