"""Publishing by the thousand, and as part of the application's own transaction."""

from __future__ import annotations

from atomic_celery import groups
from atomic_celery.publishing.joining import publishing_in
from atomic_celery.publishing.many import bulk, publish_many

__all__ = ["bulk", "publish_many", "publishing_in"]

groups.install()
