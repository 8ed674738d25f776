"""Settings; the databases and the driver come from the environment."""

import os
import sys
from typing import Any
from urllib.parse import urlsplit

if os.environ.get("SHOP_DRIVER") == "psycopg2":
    sys.modules["psycopg"] = None  # type: ignore[assignment]  # Django takes psycopg 3 where it finds it


def _database(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        name = parts.path[1:]
        test_name = f"{name}.test" if "SHOP_TEST_FILES" in os.environ else None
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "TEST": {"NAME": test_name}}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": parts.password,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }


ALLOWED_HOSTS = ["*"]
DATABASES = {
    "default": {**_database(os.environ["SHOP_DATABASE"]), "ATOMIC_REQUESTS": True},
    "other": _database(os.environ["SHOP_OTHER_DATABASE"]),
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_celery_results", "shop"]
ROOT_URLCONF = "proj.urls"
SECRET_KEY = "shop"
USE_TZ = True

CELERY_BROKER_URL = os.environ.get("SHOP_BROKER", "atomic+django://default")
CELERY_TASK_IGNORE_RESULT = "SHOP_RESULTS" not in os.environ
CELERY_RESULT_BACKEND = os.environ.get("SHOP_RESULTS")
CELERY_RESULT_EXTENDED = True
