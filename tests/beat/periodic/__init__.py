"""A Django project with django-celery-beat: its settings, its Celery app, and a shell to change its rows."""
