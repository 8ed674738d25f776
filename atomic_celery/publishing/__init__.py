"""Publishing by the thousand, and as part of the application's own transaction."""

from __future__ import annotations

from atomic_celery.publishing.bulk import bulk, publish_many
from atomic_celery.publishing.joining import publishing_in

__all__ = ["bulk", "publish_many", "publishing_in"]
