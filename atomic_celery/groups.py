"""Groups that send their tasks a thousand to a statement.

A group sends one task after the other, each by itself, and Celery asks nobody whether there is a better way. So this is
the one method of Celery's that is replaced, for all apps at once; for apps with another broker it does what it did.
"""

from __future__ import annotations

import functools
from typing import Any

from celery import canvas
from celery.utils.functional import regen

_READ_LAZILY = type(regen(iter(())))
"""Of the parts of a group that are read one by one, Celery has some in its hands before it sends the first."""


def install() -> None:
    """Replace ``group.apply_async``. Safe to repeat."""
    apply_one_by_one = canvas.group.apply_async
    if hasattr(apply_one_by_one, "sends_together"):
        return

    @functools.wraps(apply_one_by_one)
    def apply_async(self: canvas.group, *args: Any, **kwargs: Any) -> Any:
        from atomic_celery.sending import publishes_here  # here, because it may be what first imports groups' module

        if not publishes_here(self.app):
            return apply_one_by_one(self, *args, **kwargs)
        # Here, because a project with another broker should not have to import it.
        from atomic_celery.publishing.many import bulk_as_it_comes

        with bulk_as_it_comes(self.app, lazily=isinstance(self.tasks, _READ_LAZILY)):
            return apply_one_by_one(self, *args, **kwargs)

    apply_async.sends_together = True  # type: ignore[attr-defined]
    canvas.group.apply_async = apply_async  # type: ignore[method-assign]
