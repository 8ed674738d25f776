"""Django's settings without django-celery-results."""

INSTALLED_APPS: list[str] = []
SECRET_KEY = "bare"
