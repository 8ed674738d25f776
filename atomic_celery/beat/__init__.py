"""``celery beat -S atomic``: periodic tasks, each run enqueued exactly once however many beats there are.

```
scheduler   Celery's interface            entries          what is to be run
conductor   leading, and running          periodic_tasks   django-celery-beat's models
timetable   when something is due         embedded         the beat in a worker
```
"""

from __future__ import annotations

from atomic_celery.beat.scheduler import Scheduler

__all__ = ["Scheduler"]
