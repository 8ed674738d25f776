"""Settings of a shop on one machine; SHOP_DATABASE_URL moves it to PostgreSQL."""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

BASE_DIR = Path(os.environ.get("SHOP_DIRECTORY", Path(__file__).parents[1]))


def database(url):
    if not url:
        # Writers wait for each other: a transaction that reads first and then writes would fail instead.
        options = {"timeout": 20, "transaction_mode": "IMMEDIATE"}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "shop.db", "OPTIONS": options}
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": parts.port or "",
    }


SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "only for a demonstration")
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
DATABASES = {"default": database(os.environ.get("SHOP_DATABASE_URL"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "shop",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_admin",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "site_of_the_shop.urls"
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
STATIC_URL = "static/"
MEDIA_ROOT = BASE_DIR / "pictures"
USE_TZ = True

CELERY_BROKER_URL = "atomic+django://default"
CELERY_RESULT_BACKEND = "atomic"
