"""Settings; the database comes from the environment."""

import json
import os
from typing import Any
from urllib.parse import urlsplit


def _database(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": parts.path[1:],
            "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
        }
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": parts.password,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }


DATABASES = {"default": _database(os.environ["TEST_DJANGO_DATABASE"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_celery_beat"]
SECRET_KEY = "periodic"
USE_TZ = os.environ.get("TEST_USE_TZ", "1") == "1"
DJANGO_CELERY_BEAT_TZ_AWARE = USE_TZ

CELERY_BROKER_URL = os.environ["TEST_BROKER"]
CELERY_BEAT_SCHEDULE = json.loads(os.environ["TEST_CONF"])["beat_schedule"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_RESULT_EXPIRES = None
