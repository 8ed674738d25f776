"""Imported by a program whose database may take a minute to answer: its limits of 2 and 5 s are not what is tested."""

from atomic_celery import trouble

trouble.READ_LIMIT_S = trouble.WRITE_LIMIT_S = 60.0
