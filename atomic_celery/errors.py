"""What can go wrong, as one tree.

AtomicError
├── ConfigError (also a ValueError)
├── LimitKeyError (also a ValueError)
├── UnstorableName (also a ValueError)
├── AmbiguousHost (also a ValueError)
├── StoreError
│   ├── StoreUnavailable   transient
│   │   └── SecretUnusable transient
│   ├── StoreBusy          transient
│   ├── StoreRefused
│   ├── StoreForbidden
│   └── SchemaMismatch
├── QueueError
│   ├── QueueNotFound
│   ├── QueueInUse
│   └── QueueNotEmpty
├── ProvisionerError       transient
├── CallGivenUp
└── LeaseLost
    └── StaleTerm

Every error survives a pickle, says what, which and what to do, and is raised ``from`` the driver's own.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

ProvisionerFailure = Literal["missing-cli", "auth", "exit", "timeout", "malformed", "unavailable"]


_SHOWN_LENGTH = 80


class AtomicError(Exception):
    """Base of every error this package raises on purpose."""

    transient: ClassVar[bool] = False
    """Whether the same call may succeed later."""


class ConfigError(AtomicError, ValueError):
    """A setting, URL or option is wrong, or does not fit another one."""


class LimitKeyError(AtomicError, ValueError):
    """A task's key cannot be filled in with the arguments of a call: nothing was sent."""

    def __init__(self, task: str, template: str, reason: str) -> None:
        what = f"atomic_key {template!r} cannot be filled in: {reason}" if template else reason
        super().__init__(f"{task}: {what}")
        self.task, self.template, self.reason = task, template, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.task, self.template, self.reason)


class UnstorableName(AtomicError, ValueError):
    """A name is too long, or holds a character that databases do not store: nothing was sent or declared."""

    def __init__(self, what: str, name: str, reason: str) -> None:
        shown = name if len(name) <= _SHOWN_LENGTH else f"{name[:_SHOWN_LENGTH]}…"
        super().__init__(f"the {what} {shown!r} {reason}")
        self.what, self.name, self.reason = what, name, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.name, self.reason)


class AmbiguousHost(AtomicError, ValueError):
    """Several hosts have that name: nothing was done to any of them."""

    def __init__(self, name: str, hosts: tuple[str, ...]) -> None:
        super().__init__(f"{len(hosts)} hosts are called {name}: {', '.join(hosts)}; name one by its id")
        self.name, self.hosts = name, hosts

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.hosts)


class StoreError(AtomicError):
    """The database refused or could not do what was asked."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, went away, or did not answer in time."""

    transient = True


class SecretUnusable(StoreUnavailable):
    """The file of the password or token cannot be read, or holds none; a later try may find it written."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}; {fix}")
        self.what, self.fix = what, fix

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.fix)


class StoreBusy(StoreError):
    """The database could not do it just now: a lock, a deadlock, a full connection table."""

    transient = True


class StoreRefused(StoreError):
    """The database will never take these values: they are none of their columns', or too large. Nothing happened."""


class StoreForbidden(StoreError):
    """The database's user lacks a right."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}; {fix}")
        self.what, self.fix = what, fix

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.fix)


class SchemaMismatch(StoreError):
    """The tables are missing, older, or newer than this version of the package."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}; {fix}")
        self.what, self.fix = what, fix

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.fix)


class QueueError(AtomicError):
    """A queue is not what the caller took it for."""

    def __init__(self, queue: str, message: str) -> None:
        super().__init__(message)
        self.queue = queue

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.queue, str(self))


class QueueNotFound(QueueError):
    """No queue has that name."""


class QueueInUse(QueueError):
    """The queue still has consumers."""


class QueueNotEmpty(QueueError):
    """The queue still has messages."""


class ProvisionerError(AtomicError):
    """The platform that runs the fleet's instances failed, or said something that makes no sense."""

    transient = True

    def __init__(self, code: ProvisionerFailure, message: str, begun: int = 0) -> None:
        super().__init__(message)
        self.code: ProvisionerFailure = code
        self.begun = begun
        """How many instances may be on their way all the same, if it was to start some."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, str(self), self.begun)


class CallGivenUp(AtomicError):
    """The controller that made this call does not lead any more, or ends: nothing more may be done for it."""

    def __init__(self, doing: str) -> None:
        super().__init__(f"{doing}: given up, as the controller leads no more or ends")
        self.doing = doing

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.doing,)


class LeaseLost(AtomicError):
    """The message is no longer ours: its fence moved on, or its lease ran out."""

    def __init__(self, message_id: int, fence: int, *, doing: str, reason: str = "expired") -> None:
        super().__init__(f"lost message {message_id} (fence {fence}, {reason}) while {doing}")
        self.message_id, self.fence, self.doing, self.reason = message_id, fence, doing, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_lease_lost, (self.message_id, self.fence, self.doing, self.reason)


class StaleTerm(LeaseLost):
    """The term is no longer ours: somebody else leads, or nobody does."""

    def __init__(self, term: str, fence: int, *, doing: str, reason: str = "expired") -> None:
        AtomicError.__init__(self, f"lost the term {term!r} (fence {fence}, {reason}) while {doing}")
        self.term, self.fence, self.doing, self.reason = term, fence, doing, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_stale_term, (self.term, self.fence, self.doing, self.reason)


def _rebuild_lease_lost(message_id: int, fence: int, doing: str, reason: str) -> LeaseLost:
    return LeaseLost(message_id, fence, doing=doing, reason=reason)


def _rebuild_stale_term(term: str, fence: int, doing: str, reason: str) -> StaleTerm:
    return StaleTerm(term, fence, doing=doing, reason=reason)
