"""Settings; the databases and the driver come from the environment."""

import os
import sys

from tests.support.django_databases import database

if os.environ.get("SHOP_DRIVER") == "psycopg2":
    sys.modules["psycopg"] = None  # type: ignore[assignment]  # Django takes psycopg 3 where it finds it


ALLOWED_HOSTS = ["*"]
DATABASES = {
    "default": {**database(os.environ["SHOP_DATABASE"]), "ATOMIC_REQUESTS": True},
    "other": database(os.environ["SHOP_OTHER_DATABASE"]),
}
if "SHOP_TEST_FILES" in os.environ:
    for settings in DATABASES.values():
        settings["TEST"] = {"NAME": f"{settings['NAME']}.test"}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_celery_results", "shop"]
ROOT_URLCONF = "proj.urls"
SECRET_KEY = "shop"
USE_TZ = True

CELERY_BROKER_URL = os.environ.get("SHOP_BROKER", "atomic+django://default")
CELERY_TASK_IGNORE_RESULT = "SHOP_RESULTS" not in os.environ
CELERY_RESULT_BACKEND = os.environ.get("SHOP_RESULTS")
CELERY_RESULT_EXTENDED = True
