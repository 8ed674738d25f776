"""A project that shows its fleet."""

from proj.celery import app

__all__ = ["app"]
