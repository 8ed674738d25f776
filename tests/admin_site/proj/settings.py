"""Settings; where the databases are comes from the environment."""

import os
import sys

from tests.support.django_databases import database

if os.environ.get("SITE_DRIVER") == "psycopg2":
    sys.modules["psycopg"] = None  # type: ignore[assignment]  # Django takes psycopg 3 where it finds it


ALLOWED_HOSTS = ["*"]
DATABASES = {"default": database(os.environ["SITE_DATABASE"])}
if "SITE_FLEET_DATABASE" in os.environ:
    DATABASES["fleet"] = database(os.environ["SITE_FLEET_DATABASE"])
    DATABASE_ROUTERS = [] if "SITE_UNROUTED" in os.environ else ["django_admin.routers.FleetRouter"]
if "SITE_ATOMIC_REQUESTS" in os.environ:
    DATABASES["default"]["ATOMIC_REQUESTS"] = True
DEBUG = "SITE_DEBUG" in os.environ
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    *os.environ.get("SITE_THEME", "").split(),
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_celery_results",
    "django_admin",
]
MIDDLEWARE = [
    "proj.policy.ContentSecurityPolicy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "proj.urls"
SECRET_KEY = "site"
SITE_POLICY = "SITE_THEME" not in os.environ  # a theme has scripts of its own
STATIC_URL = "static/"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
TIME_ZONE = "UTC"
USE_TZ = True
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

CELERY_BROKER_URL = os.environ.get(
    "SITE_BROKER", "atomic+django://fleet" if "fleet" in DATABASES else "atomic+django://default"
)
CELERY_RESULT_BACKEND = os.environ.get("SITE_RESULTS", CELERY_BROKER_URL)
if "SITE_PREFIX" in os.environ:
    CELERY_ATOMIC_PREFIX = os.environ["SITE_PREFIX"]
CELERY_TASK_ALWAYS_EAGER = "SITE_EAGER" in os.environ
if "SITE_SHOWN" in os.environ:
    ATOMIC_URL = os.environ["SITE_SHOWN"]
ATOMIC = {"mask": "iban"}
