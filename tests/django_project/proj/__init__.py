"""A small shop that sends tasks in its transactions."""

from proj.celery import app

__all__ = ["app"]
