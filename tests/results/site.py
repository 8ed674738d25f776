"""Django's settings for workers and tests that keep results in the tables of django-celery-results."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_celery_results"]
SECRET_KEY = "site"
USE_TZ = True


def database(url: str) -> dict[str, Any]:
    """Return a database as Django wants it said."""
    parts = urlsplit(url.removeprefix("atomic+"))
    if parts.scheme == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": parts.path[1:]}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": parts.password,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }


DATABASES = {"default": database(os.environ.get("TEST_ROWS", "sqlite:///:memory:"))}
