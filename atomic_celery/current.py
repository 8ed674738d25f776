"""Which message the code that runs here holds, if any.

The pool says so around every task (`holding`); whoever publishes or writes on the task's behalf
asks `running`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Running:
    """The message that is being executed, and the proof that it may be."""

    message_id: int
    fence: int
    task_id: str | None = None
    outbox: Any = field(default=None, compare=False)
    """The `outbox.Outbox` of what is committed together with the end of the claim; None where nobody does that."""


_root: ContextVar[str | None] = ContextVar("atomic_root", default=None)
_running: ContextVar[Running | None] = ContextVar("atomic_running", default=None)


def root() -> str | None:
    """Return the root to which all belongs that is sent here; None: to its own, or its parent's."""
    return _root.get()


@contextmanager
def in_root(root_id: str) -> Iterator[None]:
    """Let all that is sent inside belong to that root."""
    token = _root.set(root_id)
    try:
        yield
    finally:
        _root.reset(token)


def running() -> Running | None:
    """Return the message this context executes; None outside a task."""
    return _running.get()


@contextmanager
def holding(message: Running | None) -> Iterator[Running | None]:
    """Let *message* be the one that runs here, until the block ends."""
    token = _running.set(message)
    try:
        yield message
    finally:
        _running.reset(token)
