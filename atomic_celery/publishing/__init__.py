"""Publishing by the thousand, and as part of the application's own transaction."""

from __future__ import annotations

from atomic_celery.publishing.bulk import bulk, publish_many

__all__ = ["bulk", "publish_many"]
