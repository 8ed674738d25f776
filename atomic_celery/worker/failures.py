"""What a child's failure is called where Celery would take it for something else."""

from __future__ import annotations

import copy
from typing import Any

from billiard import einfo
from billiard.einfo import ExceptionInfo

_Wrapped: Any = einfo.ExceptionWithTraceback  # type: ignore[attr-defined]  # unknown to its stub


class OutOfMemoryError(Exception):
    """A task's `MemoryError`. Celery takes one of that type for the worker's own, and would end the worker over it."""


def error_of(exc_info: ExceptionInfo) -> Any:
    """Return the exception that *exc_info* tells of, as it was raised."""
    error: Any = exc_info.exception
    return error.exc if isinstance(error, _Wrapped) else error


def of_the_task(exc_info: ExceptionInfo) -> ExceptionInfo:
    """Return *exc_info* with a `MemoryError` in it called the task's."""
    error = error_of(exc_info)
    if not isinstance(error, MemoryError):
        return exc_info
    tasks_own = copy.copy(exc_info)
    tasks_own.exception = OutOfMemoryError(repr(error))
    return tasks_own
