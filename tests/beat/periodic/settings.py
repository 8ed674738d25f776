"""Settings; the database comes from the environment."""

import json
import os

from tests.support.django_databases import database

DATABASES = {"default": database(os.environ["TEST_DJANGO_DATABASE"], transaction_mode="IMMEDIATE")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_celery_beat"]
SECRET_KEY = "periodic"
USE_TZ = os.environ.get("TEST_USE_TZ", "1") == "1"
DJANGO_CELERY_BEAT_TZ_AWARE = USE_TZ

CELERY_BROKER_URL = os.environ["TEST_BROKER"]
CELERY_BEAT_SCHEDULE = json.loads(os.environ["TEST_CONF"])["beat_schedule"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_RESULT_EXPIRES = None
