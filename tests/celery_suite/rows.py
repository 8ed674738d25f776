"""A plugin for pytest: Celery's suite runs in Django, with the tables of django-celery-results."""

import django
from django.core.management import call_command

django.setup()
call_command("migrate", verbosity=0)
